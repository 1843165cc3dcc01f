//go:build linux

package cli_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestGet(t *testing.T) {
	testenv.RunInTurn(t, 5)
	m := shared.Members[bergen]
	good, bad := fleet.NewImage("get-good"), fleet.NewImage("get-bad")
	good.Labels = map[string]string{"get": "good"}
	good.Spec.URL, bad.Spec.URL = shared.source.URL+"/get.qcow2", shared.source.URL+"/missing/get.qcow2"
	for _, img := range []*v1alpha1.VMDiskImage{good, bad} {
		require.NoError(t, m.Create(t.Context(), img))
		t.Cleanup(func() { require.NoError(t, m.Delete(context.Background(), img)) })
	}
	m.AwaitPhase(t, good.Name, v1alpha1.PhaseSucceeded)
	m.AwaitPhase(t, bad.Name, v1alpha1.PhaseFailed)
	shared.awaitFailing(t, bad.Name)

	var list struct {
		Kind           string
		Matched, Total int
		Items          []struct{ Name, Cluster, Source, State, Phase string }
	}
	names := func(args ...string) (all []string) {
		list.Items = nil
		shared.runJSON(t, 0, &list, append([]string{"get"}, args...)...)
		for _, i := range list.Items {
			all = append(all, i.Name)
		}
		return all
	}
	assert.Equal(t, []string{bergen, kiel}, names("clusters"))
	assert.Equal(t, "ClusterList", list.Kind)
	assert.Equal(t, []string{kiel}, names("clusters", "-l", "region=south"))
	assert.Equal(t, 1, list.Total, "the server selects")
	assert.Equal(t, []string{bergen}, names("clusters", "--sort-by", "failed", "--limit", "1"))
	assert.Contains(t, names("images", "--failing"), bad.Name)
	assert.Contains(t, names("images", "--cluster", bergen, "-n", good.Namespace), good.Name)
	assert.Equal(t, []string{good.Name}, names("images", "--live", "--cluster", bergen, "-n", good.Namespace, "-l", "get=good"))
	assert.Empty(t, names("machines", "--live", "--cluster", bergen, "-A"))
	names("images")
	assert.Equal(t, "SourceList", list.Kind)
	var sources []string
	for _, i := range list.Items {
		sources = append(sources, i.Source)
	}
	assert.Contains(t, strings.Join(sources, "\n"), good.Spec.URL)

	missing := shared.run(t, 2, "get", "clusters", bergen, "rome")
	assert.Contains(t, missing.Out, bergen)
	assert.Contains(t, missing.Err, "not found: rome")
	assert.Contains(t, shared.run(t, 2, "get", "machines", "--cluster", bergen).Err, "the hub knows no machines")
	assert.Contains(t, shared.run(t, 2, "get", "clusters", "--sort-by", "colour").Err, "must be one of failed, name, queued, report")
}
