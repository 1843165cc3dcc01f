package apitest

import (
	"reflect"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// RequireFinding checks a finding, which is a pointer to a struct with Reason and Message, and reports whether
// one is wanted: without a reason or a text of its message, it has to be nil.
func RequireFinding(t require.TestingT, got any, wantReason v1alpha1.Reason, wantText string, msgAndArgs ...any) bool {
	if wantReason == "" || wantText == "" {
		require.Nil(t, got, msgAndArgs...)
		return false
	}
	require.NotNil(t, got, msgAndArgs...)
	finding := reflect.ValueOf(got).Elem()
	assert.Equal(t, wantReason, finding.FieldByName("Reason").Interface(), msgAndArgs...)
	assert.Contains(t, finding.FieldByName("Message").String(), wantText, msgAndArgs...)
	return true
}
