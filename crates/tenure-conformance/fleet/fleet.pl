#!/usr/bin/perl
# A program of a fleet that knows nothing of Tenure: three old locks on one Redis key, as their descriptions say.
#
#   fleet.pl PORT PROTOCOL KEY TTL
#
# PROTOCOL is classic (TTL in ms), getset (TTL in whole seconds) or pid-lock (TTL in ms). It reads lines and answers
# each with one line; it ends at the end of its input.
#
#   try                          won | busy              one try
#   release                      released | left         as the protocol releases, however late
#   clock MS                     ok                      its clock is fast by so much from now on
#   race LETTER TURNS MS DIR     raced | overlap TEXT    takes turns with others, see below
#
# A turn: wait until the last letter in DIR/log is somebody else's, take the lock (a pause of MS between tries), add the
# letter to the log, look that nobody else is inside (DIR/inside must not exist), give the lock back.
use strict;
use warnings;
use Fcntl;
use IO::Socket::INET;
use Time::HiRes qw(sleep);

my ($port, $protocol, $key, $ttl) = @ARGV;
my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or die "no server: $!";
$server->setsockopt(6, 1, 1);    # TCP_NODELAY
my $fast = 0;                    # milliseconds
my $mine;                        # what was written under the key

# One command. undef is nil, and also an error such as WRONGTYPE, which no old client looks at.
sub redis {
    my @words = @_;
    print {$server} '*' . @words . "\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @words;
    my $line = <$server> // die 'the server hung up';
    $line =~ s/\r\n//;
    my ($kind, $rest) = (substr($line, 0, 1), substr($line, 1));
    return undef if $kind eq '-' or $line eq '$-1';
    return $rest unless $kind eq '$';
    read($server, my $text, $rest + 2);
    return substr($text, 0, $rest);
}

# PHP's (int): the number that a text begins with.
sub number { no warnings 'numeric'; return int($_[0] + 0) }

sub now_ms { return int(Time::HiRes::time() * 1000) + $fast }
sub now_s { return int(now_ms() / 1000) }

sub try_classic {
    $mine = join '', map { sprintf '%08x', rand 2**32 } 1 .. 4;
    return defined redis('SET', $key, $mine, 'NX', 'PX', $ttl);
}

sub release_classic {
    my $script = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    return redis('EVAL', $script, 1, $key, $mine) // 0;
}

# The value is the second at which the lock ends.
sub try_getset {
    my $stamp = now_s() + $ttl + 1;
    if (redis('SETNX', $key, $stamp)) {
        redis('EXPIRE', $key, $ttl);
        $mine = $stamp;
        return 1;
    }
    my $seen = redis('GET', $key);
    return 0 unless defined $seen and number($seen) < now_s();
    $stamp = now_s() + $ttl + 1;
    my $was = redis('GETSET', $key, $stamp);
    return 0 unless defined $was and $was eq $seen;
    redis('EXPIRE', $key, $ttl);
    $mine = $stamp;
    return 1;
}

sub release_getset {
    my $seen = redis('GET', $key);
    return 0 unless defined $seen and $seen eq $mine;
    return redis('DEL', $key);
}

# Milliseconds, no EXPIRE, and a release that does not look whose lock it is.
sub try_pid_lock {
    $mine = now_ms() + $ttl + 1;
    return 1 if redis('SETNX', $key, $mine);
    my $seen = redis('GET', $key);
    return 0 unless defined $seen and number($seen) < now_ms();
    $mine = now_ms() + $ttl + 1;
    my $was = redis('GETSET', $key, $mine);
    return (defined $was and $was eq $seen);
}

sub release_pid_lock {
    my $seen = redis('GET', $key);
    return 0 unless defined $seen and number($seen) > now_ms() + 3;
    return redis('DEL', $key);
}

my ($try, $release) = {
    'classic'  => [\&try_classic, \&release_classic],
    'getset'   => [\&try_getset, \&release_getset],
    'pid-lock' => [\&try_pid_lock, \&release_pid_lock],
}->{$protocol}->@*;

sub last_letter {
    my ($dir) = @_;
    open my $log, '<', "$dir/log" or return '';
    seek $log, -1, 2 or return '';
    read $log, my $letter, 1;
    return $letter;
}

sub race {
    my ($letter, $turns, $pause_ms, $dir) = @_;
    for (1 .. $turns) {
        sleep 0.0005 while last_letter($dir) eq $letter;
        sleep $pause_ms / 1000 until $try->();
        sysopen my $inside, "$dir/inside", O_CREAT | O_EXCL | O_WRONLY or return "overlap: somebody is inside";
        open my $log, '>>', "$dir/log" or die "no log: $!";
        print {$log} $letter;
        close $log;
        sleep 0.001;
        unlink "$dir/inside" or return 'overlap: somebody else left';
        $release->();
    }
    return 'raced';
}

$| = 1;
while (my $line = <STDIN>) {
    my ($word, @rest) = split ' ', $line;
    print +(
          $word eq 'try'     ? $try->()     ? 'won'      : 'busy'
        : $word eq 'release' ? $release->() ? 'released' : 'left'
        : $word eq 'clock'   ? do { $fast = $rest[0]; 'ok' }
        : $word eq 'race'    ? race(@rest)
        :                      "unknown: $word"
    ), "\n";
}
