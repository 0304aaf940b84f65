#!/bin/sh
# Lists lines of comments and pages wider than 100 columns, and fails if there are any. rustfmt
# handles code; tables, links, diagrams and blocks of code may be wider. Migrations (*.sql) are
# exempt: a database that has run one rejects it after a change.
set -eu
cd "$(dirname "$0")/.."
git ls-files -z '*.rs' '*.md' '*.toml' '*.sh' '*.yaml' '*.js' '*.py' Makefile .ci/run | xargs -0 perl -CSD -ne '
    sub is_comment { $ARGV =~ /\.md$/ || ($ARGV =~ /\.rs$/ ? /^\s*\/\// : $ARGV =~ /\.js$/ ? /^\s*(\/\/|\/?\*)/ : /^\s*#/) }
    $fenced = !$fenced if /^\s*(\/\/[\/!] ?)?```/;
    chomp;
    my $prose = $_ =~ s/\]\([^)]*\)/]/gr;
    if (length $prose > 100 && is_comment() && !$fenced && !/^\s*(\/\/[\/!]? ?)?\|/ && !/https?:/) {
        print "$ARGV:$.: ", length $prose, " columns\n";
        $wide = 1;
    }
    if (eof) { close ARGV; $fenced = 0 }
    END { exit 1 if $wide }
'
