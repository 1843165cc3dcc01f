package answers

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// DescribeReach returns what the approval of a wave starts; false where there is no such wave.
// downloadBytes is the size of the download, 0 where that is unknown.
func DescribeReach(v *rollout.View, wave string, downloadBytes int64) (readapi.RolloutReach, bool) {
	reach, found := rollout.EstimateReach(*v, wave, downloadBytes)
	if !found {
		return readapi.RolloutReach{}, false
	}
	img := v.Image
	r := readapi.RolloutReach{
		Name: img.Name, UID: img.UID, Generation: img.Generation, Version: img.Spec.Version, Wave: wave, Observed: img.Status.ObservedGeneration == img.Generation,
		Clusters: int32(len(reach.Starting)), Named: []readapi.NamedReach{},
		AtATime: approval.AtATime(img, wave), EachBytes: reach.EachBytes, AtMost: reach.AtMost, Changes: approval.ChangesSinceVersionBefore(img),
	}
	for i := range reach.Starting {
		p := &reach.Starting[i]
		offline := p.State == v1alpha1.ClusterDeferred
		if offline {
			r.Offline++
		}
		if len(r.Named) == readapi.MaxReachClusters {
			continue
		}
		named := readapi.NamedReach{Cluster: p.Cluster}
		if offline {
			named.Offline = cmp.Or(p.Reason, string(p.State))
		}
		r.Named = append(r.Named, named)
	}
	addSources(&r, v, &reach)
	for _, lane := range newLanes(v) {
		if lane.Name == wave {
			break
		}
		r.Before = append(r.Before, lane)
	}
	if reach.Why != "" {
		r.UnknownReason, r.UnknownMessage = string(reach.Why), reach.Why.Message()
		return r, true
	}
	takes, low, high := toSeconds(reach.Takes), toSeconds(reach.Low), toSeconds(reach.High)
	r.Seconds, r.EarliestSeconds, r.LatestSeconds = &takes, &low, &high
	return r, true
}

// addSources adds what the clusters that start are to have: what an approval has to name, and what
// they download.
func addSources(r *readapi.RolloutReach, v *rollout.View, reach *rollout.Reach) {
	r.Downloads = []readapi.ReachDownload{}
	img := v.Image
	given := approval.FindApproval(img, r.Wave, img.Spec.Version)
	overrides, err := override.Parse(img)
	if err != nil {
		r.Approval = newApproval(given)
		return // no cluster starts, and the rollout says so
	}
	clusters := make(map[string]*rollout.Cluster, len(v.Clusters))
	for i := range v.Clusters {
		clusters[v.Clusters[i].Name] = &v.Clusters[i]
	}
	knownBytes := r.EachBytes
	if r.AtMost {
		knownBytes = 0
	}
	downloads, sources := override.NewDownloads(&img.Spec.Template, knownBytes), map[string]*readapi.ReachSource{}
	for i := range reach.Starting {
		c := clusters[reach.Starting[i].Cluster]
		e := overrides.For(c.Name, c.Labels)
		if !e.IsUsable() {
			r.Waiting++
			continue
		}
		if c.PlannedRevision == e.Revision {
			r.Unchanged++
		} else {
			downloads.Add(e)
		}
		if sources[e.Digest] == nil {
			sources[e.Digest] = &readapi.ReachSource{Digest: e.Digest, Source: approval.DescribeSource(&e.Spec), From: approval.OverridesOf(e)}
		}
		sources[e.Digest].Clusters++
	}
	total := downloads.Total()
	r.Bytes, r.AtMostBytes = total.Bytes, total.AtMost
	for _, d := range firstOf(downloads.ListByHost(), readapi.MaxReachHosts) {
		r.Downloads = append(r.Downloads, readapi.ReachDownload(d))
	}
	pending := approval.PendingSources(img, r.Wave, slices.Collect(maps.Keys(sources)))
	if given != nil && len(pending) == 0 {
		r.Approval = newApproval(given)
		return
	}
	if !approval.IsRequired(img, r.Wave) {
		return
	}
	r.Extends = newApproval(given)
	r.ApproveSources = approval.New(img, r.Wave, pending, "", v.Now).Sources
	if len(r.ApproveSources) == 0 {
		return
	}
	for _, digest := range firstOf(pending, readapi.MaxReachSources) {
		if source := sources[digest]; source != nil {
			r.Sources = append(r.Sources, *source)
		} else {
			r.Sources = append(r.Sources, readapi.ReachSource{Digest: digest})
		}
	}
}
