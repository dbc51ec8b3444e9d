/*
 * How cronlock keeps a lease, for spin: who asks, renews, regains, is told when to stop, and at most one acts.
 * README.md says what is modelled, what is not, and how to run it.
 *
 * Time is a tick that everybody sees; between two ticks anything may happen in any order, or nothing at all: a process
 * that is frozen, a message that is slow. Only two things are certain: a lease runs out at the store, and the guard
 * stops the command when its time is over.
 */
#ifndef TTL
#define TTL 4       /* ticks */
#endif
#define GRACE 1     /* ticks from TERM to KILL */
#ifndef RUNS
#define RUNS 3      /* of both hosts together */
#endif
#ifndef FAILOVERS
#define FAILOVERS 1
#endif
#define HOSTS 2
#define NEVER 255

mtype = { nothing, ask, renew, regain }            /* what a host says to the store */
mtype = { silence, granted, busy, gone }           /* what the store answers */
mtype = { idle, asking, holding, losing }

typedef Store {
    byte last;      /* token of the last grant: the state, which survives the lock */
    byte left;      /* ticks until it may be granted to another; 0: free */
    byte number     /* the fence */
}

typedef Host {
    mtype phase = idle;
    byte token;     /* of this run */
    byte replaced;  /* token of the run before it */
    byte number;
    mtype said = nothing, heard = silence;
    bool present;   /* the answer is the present primary's, not one's that has failed over since */
    byte since;     /* ticks since it was said: validity counts from there */
    byte valid;     /* ticks that the command may still act */
    byte kill = NEVER;
    bool started, acts;
    bool confirmed; /* by the present primary */
    mtype stale = nothing; byte stale_token, stale_replaced, stale_number;  /* given up, and still under way */
    byte release    /* token in a release under way */
}

Store primary, replica;
Host host[HOSTS];
byte tokens;        /* handed out */
byte failovers;
byte recent = TTL;  /* ticks since the last failover */

/* What the store decides, in one piece. The answer is in `verdict`; `before` and `count` become the grant's. */
inline decide(what, who, before, count, verdict) {
    if
    :: what == ask && primary.left > 0 && primary.last == who ->      /* an earlier try got it, and its answer was lost */
        verdict = granted
    :: what == ask && primary.left == 0 ->
        before = primary.last; primary.last = who; primary.left = TTL;
        primary.number++; count = primary.number; verdict = granted
    :: what == ask && primary.left > 0 && primary.last != who -> verdict = busy
    :: what == renew && primary.left > 0 && primary.last == who -> primary.left = TTL; verdict = granted
    :: what == renew && !(primary.left > 0 && primary.last == who) -> verdict = gone
    :: what == regain ->
        if
#ifdef REGAIN_BY_NUMBER
        :: primary.number == count ->
#else
        :: primary.last == who || (primary.last == before
#ifndef REGAIN_FROM_A_LIVE_LEASE
            && primary.left == 0
#endif
            ) ->
#endif
            primary.last = who; primary.left = TTL;
            if :: primary.number < count -> primary.number = count :: else fi;
            verdict = granted
        :: else -> verdict = gone
        fi
    fi
}

inline say(h, what) {
    host[h].said = what; host[h].heard = silence; host[h].since = 0
}

inline quiet(h) {       /* what does not matter any more is zero, so that equal states are equal to spin */
    host[h].said = nothing; host[h].heard = silence; host[h].since = 0; host[h].present = false
}

inline now_valid(h) {   /* the answer says that the lease stands */
#ifdef COUNT_FROM_ANSWER
    host[h].valid = TTL;
#else
    host[h].valid = (host[h].since < TTL -> TTL - host[h].since : 0);
#endif
    host[h].confirmed = host[h].present;
    if
    :: host[h].valid > 0 && !host[h].started -> host[h].started = true; host[h].acts = true
    :: else
    fi
}

inline end_run(h) {     /* tried for a while, then left to itself */
    host[h].release = host[h].token;
    quiet(h); host[h].phase = idle; host[h].kill = NEVER; host[h].confirmed = false; host[h].valid = 0; host[h].started = false;
    host[h].replaced = 0; host[h].number = 0; host[h].since = 0; host[h].present = false
}

inline give_up(h) {     /* no answer in time; what was said may still arrive */
    if :: host[h].heard == silence ->
        host[h].stale = host[h].said; host[h].stale_token = host[h].token;
        host[h].stale_replaced = host[h].replaced; host[h].stale_number = host[h].number
    :: else     /* it was heard, but the answer got lost */
    fi;
    host[h].heard = silence
}

proctype cronlock(byte h) {
    do
    :: d_step { host[h].phase == idle && tokens < RUNS ->
        tokens++; host[h].token = tokens; host[h].phase = asking; say(h, ask) }
    :: d_step { host[h].phase == asking && host[h].heard == granted ->
        host[h].phase = holding; now_valid(h); quiet(h) }
    :: d_step { host[h].phase == asking && host[h].heard == busy ->     /* waits, and asks again */
        say(h, ask) }
    :: d_step { host[h].phase == asking && host[h].said != nothing && host[h].stale == nothing ->
        give_up(h);                                                     /* and asks again; counts from the first time */
#ifdef COUNT_FROM_LAST_TRY
        host[h].since = 0
#endif
        }
    :: d_step { host[h].phase == holding && host[h].said == nothing && (host[h].acts || !host[h].started) ->
        say(h, renew) }
    :: d_step { host[h].phase == holding && host[h].said != nothing && host[h].stale == nothing ->
        give_up(h); host[h].since = 0 }
    :: d_step { host[h].phase == holding && host[h].heard == granted ->
        now_valid(h); quiet(h) }
    :: d_step { host[h].phase == holding && host[h].said == renew && host[h].heard == gone ->
        say(h, regain) }
    :: d_step { host[h].phase == holding && host[h].said == regain && host[h].heard == gone ->
        host[h].phase = losing; host[h].confirmed = false; quiet(h);
        host[h].kill = (host[h].valid < GRACE -> host[h].valid : GRACE);
        if :: host[h].kill == 0 -> host[h].acts = false :: else fi }
    :: d_step { host[h].acts -> host[h].acts = false; host[h].valid = 0; host[h].kill = NEVER }    /* the command ends, by itself or at TERM */
    :: d_step { host[h].phase == losing && !host[h].acts -> end_run(h) }
    :: d_step { host[h].phase == holding && !host[h].acts && host[h].started -> end_run(h) }
    od
}

/* The network and the store: each message is handled once, at any time, or lost. */
proctype store(byte h) {
    byte ignored, unknown;
    mtype unheard;
    do
    :: d_step { host[h].said != nothing && host[h].heard == silence ->
        decide(host[h].said, host[h].token, host[h].replaced, host[h].number, host[h].heard);
        host[h].present = true }
    :: d_step { host[h].stale != nothing ->
        decide(host[h].stale, host[h].stale_token, host[h].stale_replaced, host[h].stale_number, unheard);
        host[h].stale = nothing; host[h].stale_token = 0; host[h].stale_replaced = 0; host[h].stale_number = 0; unheard = silence }
    :: d_step { host[h].stale != nothing ->
        host[h].stale = nothing; host[h].stale_token = 0; host[h].stale_replaced = 0; host[h].stale_number = 0 }
    :: d_step { host[h].release != 0 ->
#ifdef UNCONDITIONAL_DELETE
        primary.left = 0;
#else
        if :: primary.last == host[h].release -> primary.left = 0 :: else fi;
#endif
        host[h].release = 0 }
    :: d_step { host[h].release != 0 -> host[h].release = 0 }
    od
}

/* The replica lags: it has what the primary had at some time. */
active proctype replication() {
    byte h;
    do
    :: failovers < FAILOVERS -> d_step { replica.last = primary.last; replica.left = primary.left; replica.number = primary.number }
    :: d_step { failovers < FAILOVERS ->
        failovers++; recent = 0;
        primary.last = replica.last; primary.left = replica.left; primary.number = replica.number;
        for (h : 0 .. HOSTS - 1) { host[h].confirmed = false; host[h].present = false };
        h = 0;
        if :: failovers == FAILOVERS -> replica.last = 0; replica.left = 0; replica.number = 0 :: else fi }
    od
}

/* A tick, and what is certain to happen at it. */
active proctype clock() {
    byte h;
    do
    :: d_step {
        for (h : 0 .. HOSTS - 1) {
            if :: host[h].said != nothing && host[h].since < TTL -> host[h].since++ :: else fi;
            if :: host[h].kill != NEVER && host[h].kill > 0 -> host[h].kill-- :: else fi;
            if
            :: host[h].valid > 0 -> host[h].valid--;
#ifdef NO_GRACE
                if :: host[h].valid == 0 && host[h].acts && host[h].kill == NEVER -> host[h].kill = GRACE :: else fi  /* TERM only now */
#else
                if :: host[h].valid == 0 -> host[h].acts = false :: else fi                   /* TERM was GRACE ticks ago */
#endif
            :: else
            fi;
            if :: host[h].kill == 0 -> host[h].acts = false; host[h].kill = NEVER :: else fi
        };
        h = 0;
        if :: primary.left > 0 -> primary.left-- :: else fi;
        if :: replica.left > 0 -> replica.left-- :: else fi;
        if :: recent < TTL -> recent++ :: else fi }
    od
}

#define TWO (host[0].acts && host[1].acts)

active proctype judge() {
    /* nobody else while one acts, but for one ttl after a failover to a replica that did not know the last grant */
end:
    atomic { TWO && recent >= TTL -> assert(false) }
}

active proctype teller() {
    /* and never once both have heard from the new primary */
end:
    atomic { TWO && host[0].confirmed && host[1].confirmed -> assert(false) }
}

init {
    atomic { run cronlock(0); run cronlock(1); run store(0); run store(1) }
}
