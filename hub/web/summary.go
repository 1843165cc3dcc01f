package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// list reads all objects of a kind from the cache. They belong to it and must not be changed.
func (a *API) list(ctx context.Context, into client.ObjectList) error {
	if err := a.Members.List(ctx, into, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing %T: %w", into, err)
	}
	return nil
}

func (a *API) unknownMembers() map[string]string {
	unknown := map[string]string{}
	for _, m := range a.Index.UnknownMembers() {
		unknown[m.Member] = m.Reason
	}
	return unknown
}

func (a *API) activities(members []v1alpha1.MemberCluster) map[string]inventory.Activity {
	all := make(map[string]inventory.Activity, len(members))
	for i := range members {
		all[members[i].Name] = a.Index.Activity(members[i].Name)
	}
	return all
}

// clocks returns how the members' clocks compare with the hub's.
func (a *API) clocks(members []v1alpha1.MemberCluster, now time.Time) map[string]answers.Clock {
	clocks := make(map[string]answers.Clock, len(members))
	for i := range members {
		root, receivedAt := a.Root(members[i].Name)
		clocks[members[i].Name] = answers.NewClock(root, receivedAt, now)
	}
	return clocks
}

func (a *API) getSummary(request *http.Request) (any, error) {
	var members v1alpha1.MemberClusterList
	var images v1alpha1.FleetDiskImageList
	var reports v1alpha1.PruneReportList
	var prunes v1alpha1.ImagePruneList
	for _, into := range []client.ObjectList{&members, &images, &reports, &prunes} {
		if err := a.list(request.Context(), into); err != nil {
			return nil, err
		}
	}
	remembered, now := a.History(), a.now()
	return answers.Summarize(&answers.Fleet{
		ElectedAt: remembered.Since(), RemembersSince: remembered.FilledSince(), Policy: a.Policy(), Members: members.Items, Images: images.Items, Reports: reports.Items, Prunes: prunes.Items,
		Counts: a.Index.TotalCounts(), UnknownMembers: a.unknownMembers(), Activities: a.activities(members.Items), Clocks: a.clocks(members.Items, now), HeldBySource: a.HeldBySource(),
		Transferred: func(source string) (*int64, readapi.Values) {
			trend := remembered.Trend(source, now)
			if bytes, known := remembered.Bytes(source, 24*time.Hour, now); known {
				return &bytes, trend
			}
			return nil, trend
		},
	}), nil
}
