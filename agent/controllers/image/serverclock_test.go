package image

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
)

// dryRunServer answers dry runs with a creation time, or with an error.
type dryRunServer struct {
	client.Client
	now     time.Time
	answer  error
	deleted bool
}

func (c *dryRunServer) Create(_ context.Context, o client.Object, options ...client.CreateOption) error {
	var applied client.CreateOptions
	applied.ApplyOptions(options)
	if _, isEvent := o.(*eventsv1.Event); !isEvent || len(applied.DryRun) == 0 {
		return errors.New("something is stored")
	}
	if o.GetNamespace() != "ot-agent" {
		return errors.New("others have quotas and webhooks there")
	}
	o.SetCreationTimestamp(metav1.NewTime(c.now.Truncate(time.Second)))
	return c.answer
}

func (c *dryRunServer) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	c.deleted = true
	return apierrors.NewNotFound(eventsv1.Resource("vmdiskimages"), "a") // nothing more is done
}

// An undo window, or the time that an image may be unreferenced, has to have ended by the clock of
// the API server, too: the agent's node may be a day ahead.
func TestImageIsNotDeletedByAClockThatIsAhead(t *testing.T) {
	until := apitest.Epoch.Add(24 * time.Hour)
	for name, tt := range map[string]struct {
		now         time.Time
		answer      error
		wantDeleted bool
	}{
		"a day early":          {apitest.Epoch, nil, false},
		"a minute early":       {until.Add(-time.Minute), nil, false},
		"clocks differ a bit":  {until.Add(-20 * time.Second), nil, true},
		"it is time":           {until, nil, true},
		"it does not say":      {apitest.Epoch, apierrors.NewForbidden(eventsv1.Resource("events"), "", errors.New("exceeded quota")), true},
		"a webhook is down":    {apitest.Epoch, apierrors.NewInternalError(errors.New("failed calling webhook")), true},
		"it does not answer":   {until, apierrors.NewServiceUnavailable("later"), false},
		"an answer comes late": {until, apierrors.NewTimeoutError("later", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &dryRunServer{now: tt.now, answer: tt.answer}
			r := &Reconciler{Client: c, Events: events.NewFakeRecorder(1), Namespace: "ot-agent"}
			err := r.deleteUnreferenced(t.Context(), apitest.Image("ns/a").WithUID("image").Obj(), image.Decision{DeleteImage: true, DeleteNotBefore: until})
			assert.Equal(t, tt.wantDeleted, c.deleted)
			if !tt.wantDeleted && tt.answer == nil {
				require.ErrorIs(t, err, errServerClockBehind)
				assert.True(t, isConflict(err), "it is a wait")
				assert.Positive(t, r.serverClock.aheadBy(time.Now()))
			} else {
				assert.Zero(t, r.serverClock.aheadBy(time.Now()))
			}
		})
	}
}

func TestServerClockIsMeasuredAgain(t *testing.T) {
	var c serverClock
	now := time.Now()
	c.setAhead(time.Hour, now)
	assert.Equal(t, time.Hour, c.aheadBy(now.Add(image.ClockRecheckInterval-1)))
	assert.Zero(t, c.aheadBy(now.Add(image.ClockRecheckInterval)))
}
