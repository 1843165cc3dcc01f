package command

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// duration is the value of a flag: 5m, or a number of seconds, as join takes them.
type duration time.Duration

func (d *duration) String() string { return time.Duration(*d).String() }

// Type is what help shows for it.
func (d *duration) Type() string { return "duration" }

// Set parses the text of a flag.
func (d *duration) Set(text string) error {
	parsed, err := time.ParseDuration(text)
	if seconds, notNumber := strconv.ParseUint(text, 10, 31); notNumber == nil {
		parsed, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil {
		return fmt.Errorf("%q is neither a duration such as 5m nor a number of seconds", text)
	}
	if parsed < 0 {
		return fmt.Errorf("%q is negative: must be 0 or more", text)
	}
	*d = duration(parsed)
	return nil
}

// addDuration adds a flag that is a duration.
func addDuration(flags *pflag.FlagSet, into *time.Duration, name string, byDefault time.Duration, usage string) {
	*into = byDefault
	flags.Var((*duration)(into), name, usage)
	if byDefault == 0 || byDefault == noTimeout {
		flags.Lookup(name).DefValue = "0" // which help leaves out
	}
}

// noTimeout is the default of what ends by itself.
const noTimeout time.Duration = math.MaxInt64

// lookTimeout is what the first look of a wait has at least: with --timeout 0 a command looks once and
// judges, as kubectl wait does.
const lookTimeout = 5 * time.Second

// boundWait returns the context of a wait, that of its first look, and how long that has.
func boundWait(ctx context.Context, timeout time.Duration) (waiting, look context.Context, within time.Duration, cancel func()) {
	within = max(timeout, lookTimeout)
	waiting, cancelWaiting := context.WithTimeout(ctx, timeout)
	look, cancelLook := context.WithTimeout(ctx, within)
	return waiting, look, within, func() { cancelWaiting(); cancelLook() }
}
