package trigger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/trigger"
)

func TestConditionPollerPublishesOnlyChanges(t *testing.T) {
	results := []struct {
		reason string
		err    error
	}{{"Initial", nil}, {"A", nil}, {"A", nil}, {"Ignored", errors.New("no answer")}, {"A", nil}, {"B", nil}}
	ctx, cancel := context.WithCancel(t.Context())
	var published, failed []string
	evaluated := 0
	p := &trigger.ConditionPoller{
		Initial: metav1.Condition{Reason: "Initial"},
		Evaluate: func(context.Context) (metav1.Condition, error) {
			result := results[evaluated]
			evaluated++
			return metav1.Condition{Reason: result.reason}, result.err
		},
		Delay: func(metav1.Condition, error) time.Duration {
			if evaluated == len(results) {
				cancel()
			}
			return 0
		},
		OnChange: func(_ context.Context, c metav1.Condition) { published = append(published, c.Reason) },
		OnError:  func(_ context.Context, err error) { failed = append(failed, err.Error()) },
	}
	assert.Equal(t, "Initial", p.Condition().Reason)
	require.NoError(t, p.Start(ctx))
	assert.Equal(t, []string{"A", "B"}, published)
	assert.Equal(t, []string{"no answer"}, failed)
	assert.Equal(t, "B", p.Condition().Reason)
}
