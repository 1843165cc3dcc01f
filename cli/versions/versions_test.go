package versions

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

func lease(replica, process, version string) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: readapi.LeasePrefix + replica, Annotations: readapi.ReplicaAddress{Process: process, Version: version}.Annotations()}}
}

func elected(process string) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: readapi.ElectionLease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(process)}}
}

func member(name, version, unsupported string) v1alpha1.MemberCluster {
	m := v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.AgentVersion = version
	if unsupported != "" {
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionVersionSupported, Status: metav1.ConditionFalse, Message: unsupported}}
	}
	return m
}

func TestVersions(t *testing.T) {
	for name, test := range map[string]struct {
		snapshot    Snapshot
		wantHub     string
		wantProblem string
		wantOthers  int
		wantCode    exit.Code
	}{
		"the client alone":      {snapshot: Snapshot{Client: "v0.3.0"}},
		"the same":              {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "v0.3.0"), elected("p")}}, wantHub: "v0.3.0"},
		"the elected one":       {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "v0.3.0"), lease("1", "q", "v0.4.0"), elected("q")}}, wantHub: "v0.4.0", wantOthers: 1},
		"too far apart":         {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "v0.5.1")}}, wantHub: "v0.5.1", wantProblem: "more than one minor version apart", wantCode: exit.No},
		"another major version": {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "v1.3.0")}}, wantHub: "v1.3.0", wantProblem: "more than one minor version apart", wantCode: exit.No},
		"built from a commit":   {snapshot: Snapshot{Client: "unknown", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "v1.3.0")}}, wantHub: "v1.3.0"},
		"an older hub":          {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "")}}, wantProblem: "it is older than this plugin", wantCode: exit.Unknown},
		"may not be read":       {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", LeasesUnread: "you may not list Leases"}, wantProblem: "you may not list Leases", wantCode: exit.Unknown},
		"an agent too old":      {snapshot: Snapshot{Client: "v0.3.0", Hub: "eu", Leases: []coordinationv1.Lease{lease("0", "p", "v0.3.0")}, Members: []v1alpha1.MemberCluster{member("a", "v0.1.0", "upgrade it")}}, wantHub: "v0.3.0", wantCode: exit.No},
	} {
		t.Run(name, func(t *testing.T) {
			v := New(test.snapshot)
			assert.Equal(t, test.wantCode, v.ExitCode())
			if test.snapshot.Hub == "" {
				assert.Nil(t, v.Hub)
				return
			}
			assert.Equal(t, test.wantHub, v.Hub.Version)
			assert.Len(t, v.Hub.Replicas, test.wantOthers)
			if test.wantProblem == "" {
				assert.Empty(t, v.Hub.Problem)
			} else {
				assert.Contains(t, v.Hub.Problem, test.wantProblem)
			}
		})
	}
}

func TestScreen(t *testing.T) {
	v := New(Snapshot{
		Client: "v0.3.0", Hub: "eu-prod", Leases: []coordinationv1.Lease{lease("ot-hub-0", "p", "v0.3.0"), lease("ot-hub-1", "q", "v0.2.4"), elected("p")},
		Members: []v1alpha1.MemberCluster{
			member("bergen", "v0.3.0", ""), member("oslo", "v0.3.0", ""), member("edge-1", "v0.10.0", ""), member("new", "", ""), member("dev", "built\x1b[31m", ""),
			member("lab", "v0.1.0", "agent v0.1.0 and hub v0.3.0 are more than one minor version apart: upgrade the older one"),
		},
	})
	v.Client.Go, v.Client.Platform = "go1.26.7", "linux/amd64"
	rendertest.Golden(t, "versions", time.Time{}, v)
}
