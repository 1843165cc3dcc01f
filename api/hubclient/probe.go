package hubclient

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// WaitUntilBroken probes the connection and returns the reason when it is broken, or
// nil when ctx ends. trigger requests a probe at once.
func (c *Connection) WaitUntilBroken(ctx context.Context, trigger <-chan struct{}) error {
	var staleness watchStaleness
	var schedule probeSchedule
	delay := c.options.ProbeInterval
	for {
		triggered := false
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.exceededLimits:
			return err
		case err := <-c.watchErrors:
			return c.limitOr(err)
		case <-trigger:
			triggered = true
		case <-time.After(c.options.untilProbe(delay)):
		}
		if delay = schedule.postpone(c.cache.sinceRootEvent(), c.options.ProbeInterval); delay > 0 && !triggered {
			continue
		}
		delay = c.options.ProbeInterval
		cached := c.cache.versionOf(c.report, v1alpha1.MailboxName)
		live, err := c.Probe(ctx)
		if err != nil {
			// One lost answer is no outage.
			WaitForTrigger(ctx, trigger, min(FirstRetryDelay, c.options.ProbeInterval))
			if live, err = c.Probe(ctx); err != nil {
				return err
			}
		}
		if staleness.isStale(cached, live, time.Now()) {
			return ErrWatchStale
		}
	}
}

// probeSchedule decides when to probe. A root that a watch has delivered stands for a probe, but not
// twice in a row: that a credential was revoked, or that a watch tells of the past, shows in an answer
// only. Between a heartbeat and the probe after it the connection is silent for one interval: it is
// neither probed twice per heartbeat nor pinged.
type probeSchedule struct{ postponed bool }

// postpone returns for how long the probe that is due has to wait since a root was delivered; 0 if it
// has not to.
func (s *probeSchedule) postpone(sinceRoot, interval time.Duration) time.Duration {
	if s.postponed = sinceRoot < interval && !s.postponed; s.postponed {
		return interval - sinceRoot
	}
	return 0
}

// Probe returns the resourceVersion of the report's root; empty if there is no report.
func (c *Connection) Probe(ctx context.Context) (live string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.ProbeTimeout)
	defer cancel()
	key := client.ObjectKey{Namespace: c.endpoint.Namespace, Name: v1alpha1.MailboxName}
	answer := c.watching.Get().Namespace(key.Namespace).Resource("clusterreports").Name(key.Name).
		SetHeader("Accept", acceptMetadata("PartialObjectMetadata")).Do(ctx)
	err = answer.Error()
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return "", ErrNotServed
	case apierrors.IsNotFound(err):
		return "", nil // a sign of life too
	case err != nil:
		return "", c.limitOr(err)
	}
	text, err := answer.Raw()
	if err != nil {
		return "", err
	}
	root := &metav1.PartialObjectMetadata{}
	if err := utiljson.Unmarshal(text, root); err != nil {
		return "", fmt.Errorf("reading the report's root: %w", err)
	}
	// A server that cannot transform an object sends it whole.
	if kind := root.Kind; kind != "PartialObjectMetadata" && kind != "ClusterReport" {
		return "", fmt.Errorf("reading the report's root: %w: a %q", errAnotherObject, v1alpha1.SanitizeText(kind, 64))
	}
	if err := checkIdentity(root, key); err != nil {
		return "", err
	}
	return root.ResourceVersion, nil
}
