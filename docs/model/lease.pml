/*
 * How cronlock keeps a lease, for spin: who asks, renews, regains, is told when to stop, and at most one acts.
 * README.md says what is modelled, what is not, and how to run it.
 *
 * Time is a tick that everybody sees; between two ticks anything may happen in any order, or nothing at all: a process
 * that is frozen, an answer that is slow. Only two things are certain: a lease runs out at the store, and the guard
 * stops the command when its time is over.
 */
#ifndef TTL
#define TTL 3           /* ticks */
#endif
#ifndef RUNS
#define RUNS 3          /* of all hosts together */
#endif
#ifndef FAILOVERS
#define FAILOVERS 1
#endif
#define GRACE 1         /* ticks from TERM to KILL */
#define HOSTS 2
#define NEVER 7

mtype = { idle, asking, holding, losing };
mtype = { nothing, ask, renew };

typedef Store {
    byte last;          /* token of the last grant: the state, which survives the lock */
    byte left;          /* ticks until it may be granted to another; 0: free */
    byte number         /* the fence */
}

typedef Host {
    mtype phase;
    byte token;         /* of this run */
    byte replaced;      /* token of the run before it */
    byte number;
    bool answered;      /* "granted" is under way to us */
    bool present;       /* by the primary that is still the primary */
    bool unsure;        /* an earlier try to get the lock was not answered */
    byte since;         /* ticks since the request was sent, from where validity counts */
    byte valid;         /* ticks that the command may still act */
    byte kill;          /* ticks until KILL */
    bool started, acts;
    bool confirmed;     /* by the present primary */
    mtype stale; byte stale_token;      /* a request that was given up, and is still under way */
    byte release        /* the same of a release: its token */
}

Store primary, replica;
Host host[HOSTS];
byte tokens;            /* handed out */
byte failovers;
byte recent = TTL;      /* ticks since the last failover */
bool yes;

/* -- the store: every decision is made in one piece -- */

#ifdef REGAIN_BY_NUMBER     /* else nobody looks at it; here it must not count for ever */
#define NEXT(count) primary.number++; count = primary.number
#define MORE        (primary.number < 4)
#else
#define NEXT(count) skip
#define MORE        true
#endif

inline claim(who, before, count) {
    if
    :: primary.last == who -> if :: primary.left == 0 -> primary.left = TTL :: else fi; yes = true  /* an earlier try got it: its answer was lost */
    :: primary.last != who && primary.left == 0 && MORE ->
        before = primary.last; primary.last = who; primary.left = TTL; NEXT(count); yes = true
    :: else -> yes = false
    fi
}

inline extend(who) {
    if
    :: primary.left > 0 && primary.last == who -> primary.left = TTL; yes = true
    :: else -> yes = false
    fi
}

#ifdef REGAIN_BY_NUMBER
#define LAST_WAS_MINE(who, before, count)   (primary.number == count)
#else
#ifdef REGAIN_FROM_A_LIVE_LEASE
#define LAST_WAS_MINE(who, before, count)   (primary.last == who || primary.last == before)
#else
#define LAST_WAS_MINE(who, before, count)   (primary.last == who || (primary.last == before && primary.left == 0))
#endif
#endif

inline take_again(who, before, count) {
    if
    :: LAST_WAS_MINE(who, before, count) ->
        primary.last = who; primary.left = TTL; yes = true;
        if :: primary.number < count -> primary.number = count :: else fi
    :: else -> yes = false
    fi
}

inline drop(who) {
#ifdef UNCONDITIONAL_DELETE
    primary.left = 0;
#else
    if :: primary.last == who -> primary.left = 0 :: else fi;
#endif
}

/* -- a host. What does not matter any more is set to zero, so that spin sees equal states as equal. -- */

inline hear(h) {        /* the answer arrives: the lease stands, counted from before the request was sent */
#ifdef COUNT_FROM_ANSWER
    host[h].valid = TTL;
#else
    host[h].valid = TTL - host[h].since;
#endif
    host[h].confirmed = host[h].present;
    host[h].answered = false; host[h].present = false; host[h].unsure = false; host[h].since = 0; host[h].phase = holding;
    if
    :: host[h].valid > 0 && !host[h].started -> host[h].started = true; host[h].acts = true
    :: else
    fi
}

inline lose(h) {
    host[h].phase = losing; host[h].confirmed = false;
    host[h].kill = (host[h].valid < GRACE -> host[h].valid : GRACE);
    if :: host[h].kill == 0 -> host[h].acts = false; host[h].kill = NEVER :: else fi
}

inline end_run(h) {     /* the release is under way, and not waited for */
    host[h].release = host[h].token;
    host[h].phase = idle; host[h].token = 0; host[h].replaced = 0; host[h].number = 0; host[h].started = false; host[h].confirmed = false;
    host[h].answered = false; host[h].present = false; host[h].since = 0; host[h].valid = 0; host[h].kill = NEVER
}

proctype cronlock(byte h) {
    byte ignored;
    d_step { host[h].phase = idle; host[h].stale = nothing; host[h].kill = NEVER };
    do
    :: d_step { host[h].phase == idle && tokens < RUNS -> tokens++; host[h].token = tokens; host[h].phase = asking }
    :: d_step { host[h].phase == asking && !host[h].answered ->
        claim(host[h].token, host[h].replaced, host[h].number);
#ifdef COUNT_FROM_LAST_TRY
        host[h].since = 0;
#endif
        host[h].answered = yes; host[h].present = yes }
#ifndef PROMPT     /* a request that is not answered may still arrive */
    :: d_step { host[h].phase == asking && !host[h].answered && host[h].stale == nothing ->    /* asks; nobody answers */
        host[h].stale = ask; host[h].stale_token = host[h].token; host[h].unsure = true }
#endif
    :: d_step { host[h].phase == asking && host[h].answered ->                                  /* the answer gets lost */
        host[h].answered = false; host[h].present = false; host[h].unsure = true }
    :: d_step { host[h].phase == holding && !host[h].answered && (host[h].acts || !host[h].started) ->
        extend(host[h].token);
        if :: !yes -> take_again(host[h].token, host[h].replaced, host[h].number) :: else fi;
        if :: yes -> host[h].answered = true; host[h].present = true :: else -> lose(h) fi }
#ifndef PROMPT     /* a request that is not answered may still arrive */
    :: d_step { host[h].phase == holding && !host[h].answered && host[h].stale == nothing ->
        host[h].stale = renew; host[h].stale_token = host[h].token }
#endif
    :: d_step { host[h].phase == holding && host[h].answered ->
        host[h].answered = false; host[h].present = false; host[h].since = 0 }
    :: d_step { (host[h].phase == asking || host[h].phase == holding) && host[h].answered -> hear(h) }
    :: d_step { host[h].acts -> host[h].acts = false; host[h].valid = 0; host[h].kill = NEVER }  /* it ends, by itself or at TERM */
    :: d_step { (host[h].phase == losing || host[h].started) && !host[h].acts -> end_run(h) }
    /* the network brings what was given up */
    :: d_step { host[h].stale != nothing ->
        if
        :: host[h].stale == renew -> extend(host[h].stale_token)
        :: host[h].stale == ask && host[h].stale_token == host[h].token -> claim(host[h].stale_token, host[h].replaced, host[h].number)
        :: else -> claim(host[h].stale_token, ignored, ignored)
        fi;
        host[h].stale = nothing; host[h].stale_token = 0; ignored = 0 }
    :: d_step { host[h].release != 0 -> drop(host[h].release); host[h].release = 0 }
    od
}

/* The replica lags: it has what the primary had at some time. */
active proctype failover() {
    byte h;
    do
    :: d_step { failovers < FAILOVERS -> replica.last = primary.last; replica.left = primary.left; replica.number = primary.number }
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
            if :: (host[h].answered || host[h].unsure) && host[h].since < TTL -> host[h].since++ :: else fi;
            if :: host[h].kill != NEVER -> host[h].kill-- :: else fi;
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
end:
    atomic {
        if
        :: TWO && recent >= TTL -> assert(false)                                /* but for one ttl after a failover: nobody beside one */
        :: TWO && host[0].confirmed && host[1].confirmed -> assert(false)       /* and never once both know the new primary */
        fi
    }
}

init {
    atomic { run cronlock(0); run cronlock(1) }
}
