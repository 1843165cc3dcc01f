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

// serverClock answers dry runs with a creation time, or with an error.
type serverClock struct {
	client.Client
	now     time.Time
	answer  error
	deleted bool
}

func (c *serverClock) Create(_ context.Context, o client.Object, options ...client.CreateOption) error {
	var applied client.CreateOptions
	applied.ApplyOptions(options)
	if _, isEvent := o.(*eventsv1.Event); !isEvent || len(applied.DryRun) == 0 {
		return errors.New("something is stored")
	}
	o.SetCreationTimestamp(metav1.NewTime(c.now.Truncate(time.Second)))
	return c.answer
}

func (c *serverClock) Delete(context.Context, client.Object, ...client.DeleteOption) error {
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
		"it does not answer":   {until, apierrors.NewServiceUnavailable("later"), false},
		"an answer comes late": {until, apierrors.NewTimeoutError("later", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := &serverClock{now: tt.now, answer: tt.answer}
			recorder := events.NewFakeRecorder(1)
			r := &Reconciler{Client: c, Events: recorder}
			err := r.deleteUnreferenced(t.Context(), apitest.Image("ns/a").WithUID("image").Obj(), image.Decision{DeleteImage: true, DeleteNotBefore: until})
			assert.Equal(t, tt.wantDeleted, c.deleted)
			if !tt.wantDeleted && tt.answer == nil {
				require.ErrorContains(t, err, "the agent's clock is ahead")
				require.Contains(t, <-recorder.Events, "ClockAhead")
			}
		})
	}
}
