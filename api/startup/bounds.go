package startup

import (
	"errors"
	"fmt"
	"time"
)

// DurationFlag is a flag with the values by which the program can keep what it promises.
type DurationFlag struct {
	Name     string
	Value    time.Duration
	Min, Max time.Duration
	// Otherwise is what happens beyond the bounds.
	Otherwise string
}

// CheckDurations returns an error about every flag that is out of its bounds.
func CheckDurations(flags ...DurationFlag) error {
	var errs []error
	for _, f := range flags {
		if f.Value < f.Min || f.Value > f.Max {
			errs = append(errs, fmt.Errorf("--%s=%s must be from %s to %s: otherwise %s", f.Name, f.Value, f.Min, f.Max, f.Otherwise))
		}
	}
	return errors.Join(errs...)
}

const (
	minRetryPeriod = 100 * time.Millisecond
	minQPS, maxQPS = 1, 10_000
)

// validateQPS also refuses what is no number: client-go would take 0 for a default of its
// own, and less for no limit.
func (o *Options) validateQPS() error {
	if o.QPS >= minQPS && o.QPS <= maxQPS {
		return nil
	}
	return fmt.Errorf("--kube-api-qps=%v must be from %d to %d", o.QPS, minQPS, maxQPS)
}

// validateElection refuses durations with which two replicas could lead at a time. Leases
// hold whole seconds: others wait no longer than that for a leader that works until its
// deadline.
func (o *Options) validateElection() error {
	if !o.LeaderElect {
		return nil
	}
	switch {
	case o.LeaseDuration%time.Second != 0:
		return fmt.Errorf("--leader-elect-lease-duration=%s must be in whole seconds, as Leases are", o.LeaseDuration)
	case o.LeaseDuration <= o.RenewDeadline:
		return fmt.Errorf("--leader-elect-lease-duration=%s must be more than --leader-elect-renew-deadline=%s: otherwise two replicas can lead at a time", o.LeaseDuration, o.RenewDeadline)
	case o.RetryPeriod < minRetryPeriod:
		return fmt.Errorf("--leader-elect-retry-period=%s must be at least %s: otherwise attempts at the Lease are a load of their own", o.RetryPeriod, minRetryPeriod)
	case o.RenewDeadline <= o.RetryPeriod*6/5: // client-go waits for up to that long
		return fmt.Errorf("--leader-elect-renew-deadline=%s must be more than 1.2 times --leader-elect-retry-period=%s: otherwise one attempt decides", o.RenewDeadline, o.RetryPeriod)
	}
	return nil
}
