//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// The FleetDiskImage: a version for all clusters, lab first.
const (
	golden        = "golden"
	goldenVersion = "2.1.0"
	goldenImage   = golden + "-" + goldenVersion
	canaryLabel   = "canary"
)

// rolloutState is what the demo has seen of the rollout.
type rolloutState struct {
	fleetImage v1alpha1.FleetDiskImage
	// deferred is true if it had succeeded everywhere else while edge was offline.
	deferred bool
	// caughtUp is true once it is in all clusters.
	caughtUp bool
}

// newOverrides are for clusters that differ: those at a site with a mirror download
// from there, and lab has another storage class.
func newOverrides(mirror string) []v1alpha1.ImageOverride {
	return []v1alpha1.ImageOverride{
		{
			ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: siteLabel, Operator: metav1.LabelSelectorOpExists}}},
			URL:             ptr.To(mirror + "/${labels." + siteLabel + "}/" + goldenImage + ".qcow2"),
		},
		{ClusterNames: []string{lab}, StorageClass: ptr.To(simulator.ClassLocal)},
	}
}

func (s *demoStory) goldenImage() *v1alpha1.FleetDiskImage {
	img := newFleetImage(golden, goldenVersion, s.sourceURL(goldenImage), v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}})
	img.Spec.Overrides = newOverrides(s.mirror.URL + "/ok/" + downloadDuration)
	img.Spec.Rollout = v1alpha1.Rollout{
		Waves:          []v1alpha1.Wave{{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{canaryLabel: "true"}}}},
		MaxConcurrency: ptr.To(intstr.FromInt32(1)),
	}
	return img
}

func newFleetImage(name, version, url string, placement v1alpha1.Placement) *v1alpha1.FleetDiskImage {
	return &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.FleetDiskImageSpec{
			Version: version, TargetNamespace: namespace,
			Template: v1alpha1.VMDiskImageSpec{
				Name: name, SourceType: v1alpha1.SourceHTTP, URL: url,
				DiskSize: resource.MustParse("24Gi"), StorageClass: simulator.ClassCSI,
			},
			Placement: placement,
		},
	}
}

// rolloutActs create the FleetDiskImage. They begin when the hub considers edge unreachable; edge
// may come back when they have ended.
func (s *demoStory) rolloutActs() []storyAct {
	return []storyAct{
		{func() bool {
			return s.conditionStatus(edge, v1alpha1.ConditionAgentHealthy) == metav1.ConditionFalse
		}, func(ctx context.Context) error {
			if err := s.showStatus(ctx); err != nil {
				return err
			}
			if err := s.client.Create(ctx, s.goldenImage()); err != nil {
				return fmt.Errorf("creating FleetDiskImage %s: %w", golden, err)
			}
			s.screen.printNote("FleetDiskImage %s %s applied for all clusters: lab first, in a storage class of its own, then one at a time; edge from the mirror of its site", golden, goldenVersion)
			return nil
		}},
		{func() bool { return s.isRolledOut(v1alpha1.ClusterCounts{Total: 3, Succeeded: 2, Deferred: 1}) }, func(ctx context.Context) error {
			there := &v1alpha1.VMDiskImage{}
			err := s.demoFleet.members[edge].Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: goldenImage}, there)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("looking for VMDiskImage %s in %s: %w", goldenImage, edge, err)
			}
			s.deferred = apierrors.IsNotFound(err)
			s.screen.printNote("%s is in lab and bergen; edge is offline and deferred", goldenImage)
			return s.screen.runPlugin(ctx, answered, "tree", "rollout", golden)
		}},
		{func() bool { return s.isRolledOut(v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}) }, func(context.Context) error {
			s.caughtUp = true
			s.screen.printNote("edge has caught up: %s is in all clusters", goldenImage)
			return nil
		}},
	}
}

// isRolledOut reports whether the rollout has ended with these counts of clusters.
func (s *demoStory) isRolledOut(want v1alpha1.ClusterCounts) bool {
	img := &s.fleetImage
	finished := meta.FindStatusCondition(img.Status.Conditions, v1alpha1.ConditionFinished)
	return finished != nil && finished.Status == metav1.ConditionTrue && img.Status.ObservedGeneration == img.Generation &&
		img.Status.Phase == v1alpha1.RolloutSucceeded && img.Status.Clusters == want
}

func (s *demoStory) readRollout(ctx context.Context) error {
	var img v1alpha1.FleetDiskImage
	if err := s.client.Get(ctx, client.ObjectKey{Name: golden}, &img); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading FleetDiskImage %s: %w", golden, err)
	}
	s.fleetImage = img
	return nil
}

// checkRollout checks the rollout by what the observers have seen of the image in each cluster.
func (s *demoStory) checkRollout(ctx context.Context, check func(bool, string, ...any)) error {
	spans := map[string][]observer.Span{}
	for _, name := range memberNames {
		h, err := s.observers[name].History(ctx)
		if err != nil {
			return err
		}
		uid := s.goldenUID(name)
		for _, span := range h.Spans() {
			if uid != "" && span.Image == uid {
				spans[name] = append(spans[name], span)
			}
		}
	}
	once := len(spans[bergen]) == 1 && len(spans[edge]) == 1 && len(spans[lab]) == 1
	check(once, "%s was downloaded once in each of the three clusters", goldenImage)
	check(once && isStrictlyAfter(spans[bergen], spans[lab]) && isStrictlyAfter(spans[edge], spans[bergen]), "one cluster at a time downloaded it, lab first")
	check(s.goldenSpec(edge).URL == s.mirror.URL+"/ok/"+downloadDuration+"/cellar/"+goldenImage+".qcow2" && s.goldenSpec(bergen).URL == s.sourceURL(goldenImage),
		"edge downloaded it from the mirror of its site, bergen from the origin")
	check(s.goldenSpec(lab).StorageClass == simulator.ClassLocal && s.goldenSpec(edge).StorageClass == simulator.ClassCSI, "lab has it in a storage class of its own")
	check(s.deferred, "edge was deferred while it was offline, and caught up")
	return nil
}

// isStrictlyAfter reports whether one download began after the other had ended.
func isStrictlyAfter(one, other []observer.Span) bool {
	end := other[0].Ended
	return end != (time.Time{}) && !one[0].Begun.Before(end)
}

func (s *demoStory) goldenUID(member string) types.UID { return s.goldenIn(member).UID }

func (s *demoStory) goldenSpec(member string) v1alpha1.VMDiskImageSpec {
	return s.goldenIn(member).Spec
}

// goldenIn returns the image of the rollout in a member, an empty one for none.
func (s *demoStory) goldenIn(member string) v1alpha1.VMDiskImage {
	for i := range s.images[member] {
		if img := &s.images[member][i]; img.Name == goldenImage {
			return *img
		}
	}
	return v1alpha1.VMDiskImage{}
}
