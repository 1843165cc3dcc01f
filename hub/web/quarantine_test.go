package web

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestQuarantine(t *testing.T) {
	f := newTestFleet(t, "a")
	f.Live = f.client
	var got readapi.MemberQuarantineDetail
	f.read(t, "members/quarantine?member=a", &got)
	assert.False(t, got.Quarantined)
	assert.NotEmpty(t, got.Begin.Effects)

	member := &v1alpha1.MemberCluster{}
	require.NoError(t, f.client.Get(t.Context(), client.ObjectKey{Name: "a"}, member))
	member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "forged"}
	require.NoError(t, f.client.Update(t.Context(), member))
	before := got.ResourceVersion
	got = readapi.MemberQuarantineDetail{}
	f.read(t, "members/quarantine?member=a", &got)
	assert.Equal(t, "forged", got.Reason)
	assert.NotEqual(t, before, got.ResourceVersion, "never remembered: a change is decided on what is stored")

	assert.Equal(t, http.StatusBadRequest, f.get(t, "members/quarantine", nil).Code)
	assert.Equal(t, http.StatusNotFound, f.get(t, "members/quarantine?member=nobody", nil).Code)
}
