package apitest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AssertCondition checks status and reason of a condition, and a part of its message. Status "" is
// for no condition.
func AssertCondition(t *testing.T, got *metav1.Condition, wantStatus metav1.ConditionStatus, wantReason, wantMessage string) {
	t.Helper()
	if wantStatus == "" {
		assert.Nil(t, got)
		return
	}
	require.NotNil(t, got)
	assert.Equal(t, wantStatus, got.Status, got.Message)
	assert.Equal(t, wantReason, got.Reason, got.Message)
	assert.Contains(t, got.Message, wantMessage)
}
