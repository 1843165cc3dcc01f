//go:build linux

package cli_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestWhy(t *testing.T) {
	testenv.RunInTurn(t, 7)
	member := shared.Members[bergen]
	create := func(name, url string) {
		img := apitest.Image("default/" + name).WithURL(url).Obj()
		img.ResourceVersion, img.UID = "", ""
		require.NoError(t, member.Client().Create(t.Context(), img))
		t.Cleanup(func() { assert.NoError(t, member.Client().Delete(context.Background(), img)) })
	}
	create("why-ready", shared.source.URL+"/why")
	create("why-missing", shared.source.URL+"/missing/why")
	var why struct {
		Kind, Verdict, Reason, Cluster string
		ExpectedReason                 string
		Budget                         struct{ Budget int }
	}
	// In a member's context no hub is asked.
	result, err := shared.Run(t.Context(), nil, "why", "image", "why-ready", "-n", "default", "--context", bergen, "--hub", "nowhere", "-w", "--timeout", "2m")
	require.NoError(t, err)
	require.Equal(t, 0, result.Code, result.Out+result.Err)
	assert.Contains(t, result.Out, "default/why-ready in bergen: Succeeded, Ready")
	result, err = shared.Run(t.Context(), nil, "why", "image", "why-missing", "-n", "default", "--context", bergen, "-w")
	require.NoError(t, err)
	require.Equal(t, 1, result.Code, result.Out+result.Err)
	shared.runJSON(t, 1, &why, "why", "image", "why-missing", "-n", "default", "--context", bergen)
	assert.Equal(t, "WhyImage", why.Kind)
	assert.Equal(t, "NotFound", why.Reason)
	assert.Equal(t, 3, why.Budget.Budget)

	// The hub says the same of what bergen has reported.
	shared.awaitFailing(t, "why-missing")
	shared.runJSON(t, 1, &why, "why", "image", "why-missing", "-n", "default", "--cluster", bergen)
	assert.Equal(t, "NotFound", why.Reason)
	shared.runJSON(t, 1, &why, "why", "cluster", bergen)
	assert.Equal(t, "Failed", why.Verdict)
	shared.runJSON(t, 1, &why, "why", "image", "why-missing", "-n", "default", "--cluster", bergen, "--live")

	for _, missing := range [][]string{
		{"why", "image", "nothing", "--context", bergen}, {"why", "image", "nothing", "--cluster", bergen}, {"why", "image", "nothing", "--cluster", "nowhere"},
		{"why", "rollout", "nothing"}, {"why", "cluster", "nowhere"}, {"why", "machine", "nothing", "--context", bergen}, {"why", "machine", "nothing", "--cluster", bergen},
	} {
		assert.NotEmpty(t, shared.run(t, 2, missing...).Err)
	}
}
