//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	namespace = "vmdi-farm"
	// storyTimeout includes the build of KubeVirt.
	storyTimeout = 15 * time.Minute
	pollInterval = 250 * time.Millisecond

	imagesPerMember  = 5
	downloadDuration = "2s"
	// Budgets of the first and of the raised policy.
	firstBudget, raisedBudget = 2, 3
	firstEdge, raisedEdge     = 1, 2
	// labNightBudget applies in lab's window.
	labBudget, labNightBudget = 3, 4
	// edge is cut off when it has cutAfter images, and comes back with backAfter.
	cutAfter, backAfter = 1, 3
)

// demoStory runs the scenes of the demo and checks their outcome.
type demoStory struct {
	*demoFleet
	// mirror is the source at edge's site.
	source, mirror *httptest.Server
	screen         *display

	// memberClusters are read from the hub, images from the members.
	memberClusters []v1alpha1.MemberCluster
	images         map[string][]v1alpha1.VMDiskImage
	// threads are the remaining acts. Threads are independent; the acts of each have an order.
	threads [][]storyAct
	workspaceState
	rolloutState
	pruneState
	replicaState
	// aloneReady are the numbers of ready images in edge when it was cut off and when it came
	// back.
	aloneReady [2]int
}

// storyAct runs once, as soon as it is due.
type storyAct struct {
	isDue func() bool
	run   func(context.Context) error
}

func newDemoStory(f *demoFleet) *demoStory {
	s := &demoStory{demoFleet: f, screen: newDisplay(f.plugin), images: map[string][]v1alpha1.VMDiskImage{}}
	s.unhealthy = map[string]bool{}
	s.source, s.mirror = newSource(originAddress), newSource(mirrorAddress)
	s.threads = [][]storyAct{s.workspaceActs(), s.rolloutActs(), s.previewActs(), s.pruneActs(), s.replicaActs(), {
		{func() bool { return s.countReady(edge) >= cutAfter }, s.cutLink},
		{func() bool {
			return s.conditionStatus(edge, v1alpha1.ConditionReachable) == metav1.ConditionFalse
		}, s.raiseBudgets},
		{func() bool {
			return s.countReady(edge) >= backAfter && s.isBudgetAcknowledged(bergen, raisedBudget) && s.isBudgetAcknowledged(lab, labBudget, labNightBudget) && s.deferred
		}, s.mendLink},
		{func() bool { return s.isBudgetAcknowledged(edge, raisedEdge) }, func(context.Context) error {
			s.screen.printNote("edge is back and has acknowledged the policy that it missed")
			return nil
		}},
	}}
	return s
}

func (s *demoStory) close() {
	s.source.Close()
	s.mirror.Close()
}

// newImage returns the nth image of a member. All members have the same, of which one fails once
// and one does not exist.
func (s *demoStory) newImage(of string, n int) *v1alpha1.VMDiskImage {
	name, path := fmt.Sprintf("lab-%d", 150+n), "/ok/"+downloadDuration+"/disk.qcow2"
	switch {
	case of == bergen && n == 2:
		name, path = "breaks-off-once", "/flaky/1/"+downloadDuration+"/disk.qcow2"
	case of == lab && n == 3:
		name, path = "no-such-image", "/missing/disk.qcow2"
	}
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: s.source.URL + path,
			DiskSize: resource.MustParse("24Gi"), StorageClass: "sim-csi",
		},
	}
}

// run runs the story until every image is ready or failed and the hub has the same counts.
func (s *demoStory) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storyTimeout)
	defer cancel()
	s.screen.start = time.Now()
	binaries.ReportTo(s.screen)
	for _, name := range memberNames {
		c := s.members[name].Client()
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			return err
		}
		for n := range imagesPerMember {
			img := s.newImage(name, n+1)
			if err := c.Create(ctx, img); err != nil {
				return fmt.Errorf("creating VMDiskImage %s in %s: %w", img.Name, name, err)
			}
		}
	}
	s.screen.printNote("%d VMDiskImages applied in each cluster", imagesPerMember)
	s.screen.offerDashboard(ctx)
	if err := s.openWorkspace(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if err := s.readFleet(ctx); err != nil {
			return err
		}
		left, err := s.runDueActs(ctx)
		if err != nil {
			return err
		}
		if left == 0 && s.isDone() {
			return s.showStatus(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not everything has ended after %s, %d of the story's turns are left: %w", storyTimeout, left, ctx.Err())
		case <-ticker.C:
		}
	}
}

// showStatus shows the fleet on one screen.
func (s *demoStory) showStatus(ctx context.Context) error {
	return s.screen.runPlugin(ctx, answered, "status")
}

// runDueActs runs the acts that are due and returns how many remain.
func (s *demoStory) runDueActs(ctx context.Context) (left int, err error) {
	for i := range s.threads {
		for len(s.threads[i]) > 0 && s.threads[i][0].isDue() {
			if err := s.threads[i][0].run(ctx); err != nil {
				return left, err
			}
			s.threads[i] = s.threads[i][1:]
		}
		left += len(s.threads[i])
	}
	return left, nil
}

// readFleet reads MemberClusters from the hub and images from the members.
func (s *demoStory) readFleet(ctx context.Context) error {
	if err := s.restartEnded(ctx); err != nil {
		return err
	}
	if err := s.checkKubeVirt(); err != nil {
		return err
	}
	var members v1alpha1.MemberClusterList
	if err := s.client.List(ctx, &members); err != nil {
		return fmt.Errorf("listing MemberClusters: %w", err)
	}
	s.memberClusters = members.Items
	for _, name := range memberNames {
		var images v1alpha1.VMDiskImageList
		if err := s.demoFleet.members[name].Client().List(ctx, &images, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("listing VMDiskImages of %s: %w", name, err)
		}
		s.images[name] = images.Items
	}
	if err := s.readRollout(ctx); err != nil {
		return err
	}
	if err := s.readPrunes(ctx); err != nil {
		return err
	}
	s.noteReplicas()
	return s.readWorkspace(ctx)
}

func (s *demoStory) cutLink(context.Context) error {
	s.aloneReady[0] = s.countReady(edge)
	s.uplink.Cut()
	s.screen.printNote("edge is cut off from the hub")
	return nil
}

func (s *demoStory) raiseBudgets(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	cm.Data = newPolicy(raisedBudget, raisedEdge)
	if err := s.client.Update(ctx, cm); err != nil {
		return fmt.Errorf("raising the policy: %w", err)
	}
	s.screen.printNote("policy ConfigMap of the hub changed: concurrency %d -> %d, where edge=true %d -> %d", firstBudget, raisedBudget, firstEdge, raisedEdge)
	return nil
}

func (s *demoStory) mendLink(ctx context.Context) error {
	s.aloneReady[1] = s.countReady(edge)
	s.screen.printNote("edge synced %d images meanwhile; it is reachable again", s.aloneReady[1]-s.aloneReady[0])
	return s.uplink.Repair(ctx)
}

func (s *demoStory) findMember(name string) *v1alpha1.MemberCluster {
	for i := range s.memberClusters {
		if s.memberClusters[i].Name == name {
			return &s.memberClusters[i]
		}
	}
	return &v1alpha1.MemberCluster{}
}

func (s *demoStory) conditionStatus(name, condition string) metav1.ConditionStatus {
	if c := meta.FindStatusCondition(s.findMember(name).Status.Conditions, condition); c != nil {
		return c.Status
	}
	return metav1.ConditionUnknown
}

// isBudgetAcknowledged reports whether a member's ledger has one of the budgets under the newest plan.
func (s *demoStory) isBudgetAcknowledged(name string, budgets ...int32) bool {
	st := s.findMember(name).Status
	return s.conditionStatus(name, v1alpha1.ConditionPolicyAcknowledged) == metav1.ConditionTrue && st.Budget != nil && slices.Contains(budgets, *st.Budget)
}

func (s *demoStory) countInPhase(name string, phase v1alpha1.Phase) (n int) {
	for i := range s.images[name] {
		if s.images[name][i].Status.Phase == phase {
			n++
		}
	}
	return n
}

func (s *demoStory) countReady(name string) int { return s.countInPhase(name, v1alpha1.PhaseSucceeded) }

// isDone reports whether all images are ready or failed and the hub has the same counts.
func (s *demoStory) isDone() bool {
	return !slices.ContainsFunc(memberNames, func(name string) bool {
		ready, failed := s.countReady(name), s.countInPhase(name, v1alpha1.PhaseFailed)
		counts := s.findMember(name).Status.Images
		return ready+failed < len(s.images[name]) || counts == nil || int(counts.Ready) != ready || int(counts.Failed) != failed
	})
}

// summarize checks the outcome by what the observers have seen, and fails where a promise was
// broken.
func (s *demoStory) summarize(ctx context.Context) error {
	var wrong []string
	check := func(holds bool, format string, args ...any) {
		mark := "yes"
		if !holds {
			mark = "NO "
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
		fmt.Printf("  %s  %s\n", mark, fmt.Sprintf(format, args...))
	}
	fmt.Printf("\nAfter %.0f s, by observers that read no status of the agents' or the hub's:\n", time.Since(s.screen.start).Seconds())
	for _, name := range memberNames {
		h, err := s.observers[name].History(ctx)
		if err != nil {
			return err
		}
		check(len(h.BudgetViolations()) == 0 && h.MaxRunning() > 0, "%s: never more downloads than its budget (%d at the most)", name, h.MaxRunning())
		check(len(h.ReusedNames()) == 0, "%s: no DataVolume was created twice", name)
		for _, img := range s.images[name] {
			switch img.Name {
			case "breaks-off-once":
				check(img.Status.Phase == v1alpha1.PhaseSucceeded && h.Attempts(img.UID) == 2, "%s: %s succeeded with its second attempt", name, img.Name)
			case "no-such-image":
				check(img.Status.Phase == v1alpha1.PhaseFailed && h.Attempts(img.UID) == 0, "%s: %s failed as %s and cost no download", name, img.Name, img.Status.Reason)
			}
		}
	}
	check(s.aloneReady[1] > s.aloneReady[0], "edge synced images without the hub")
	if err := s.checkRollout(ctx, check); err != nil {
		return err
	}
	s.checkReplicas(check)
	check(s.isDone(), "the hub has the same counts as the clusters")
	fmt.Println("By KubeVirt's status, the claims that exist, and the hub's read API:")
	if err := s.checkWorkspace(ctx, check); err != nil {
		return err
	}
	if err := s.checkPrune(ctx, check); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d of the checks above failed: %w", len(wrong), errors.New(strings.Join(wrong, "; ")))
	}
	return nil
}
