//! `panics URL async|blocking|compat` panics in its main function, in work under the lock `x`: the end of a program that does
//! nothing about it.
#![forbid(unsafe_code)]

use std::error::Error;

use tenure::compat::{Client, Protocol};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(url), Some(way)) = (words.next(), words.next()) else {
        return Err("usage: panics URL async|blocking|compat".into());
    };
    match &*way {
        "async" => with_async(&url),
        "compat" => with_compat(&url),
        "blocking" => {
            let client = tenure::blocking::Client::connect(&url)?;
            Ok(client.lock("x").with(|_| panic!("out of paper"))?)
        }
        _ => Err("which way?".into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn with_async(url: &str) -> Result<(), Box<dyn Error>> {
    let client = tenure::Client::connect(url).await?;
    Ok(client.lock("x").with(async |_| panic!("out of paper")).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn with_compat(url: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(url, Protocol::Classic).await?;
    Ok(client.lock("x").with(async |_| panic!("out of paper")).await?)
}
