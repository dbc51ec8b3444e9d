# made by docs/generate.py from docs/share.py: change that
_CRONLOCK_COMPLETE=fish_source cronlock | source

function __cronlock
    set -l words (commandline -opc)
    set -l name 2
    while test $name -le (count $words)
        switch $words[$name]
            case --
                set name (math $name + 1)
                break
            case --backend --ttl --wait --timeout --conflict-exit-code --command --once-per --prefer --standby-delay --min-hold --max-runtime --kill-after --warn-after --on-lost --on-unavailable --jitter --heartbeat --heartbeat-output --heartbeat-timeout --log-format --config
                set name (math $name + 1)
            case '--*'
            case '-*'
                string match -qr '^-[nxeoFvq]*[btwEc]$' -- $words[$name]
                and set name (math $name + 1)
            case '*'
                break
        end
        set name (math $name + 1)
    end
    if test $name -gt (count $words)
        _cronlock_completion
        return
    end
    test "$words[$(math $name + 1)]" = --
    and set name (math $name + 1)
    set -l command (string escape -- $words[(math $name + 1)..]) (commandline -ct)
    complete -C "$command"
end

complete -c cronlock -e # click's
complete -c cronlock -f -a '(__cronlock)'
