//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/observer"
)

const (
	namespace = "vmdi-farm"
	patience  = 3 * time.Minute
	tick      = 200 * time.Millisecond
	// raiseAfter is how many images are ready when the policy is raised.
	raiseAfter    = 5
	firstBudget   = 3
	raisedBudget  = 5
	downloadTakes = "3s"
)

// story is what the demo does, and what it expects to come of it.
type story struct {
	client client.Client
	source *httptest.Server
	screen *screen
	images []*v1alpha1.VMDiskImage
	start  time.Time
	raised bool
}

func newStory(m *member.Member) *story {
	s := &story{client: m.Client(), screen: newScreen()}
	// The source answers only whether it has an image; no bytes are served.
	s.source = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	for i := 1; i <= 12; i++ {
		name, path := fmt.Sprintf("lab-%d", 150+i), "/ok/"+downloadTakes+"/disk.qcow2"
		switch i {
		case 4:
			name, path = "breaks-off-once", "/flaky/1/"+downloadTakes+"/disk.qcow2"
		case 7:
			name, path = "no-such-image", "/missing/disk.qcow2"
		}
		s.images = append(s.images, &v1alpha1.VMDiskImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1alpha1.VMDiskImageSpec{
				Name: name, SourceType: v1alpha1.SourceHTTP, URL: s.source.URL + path,
				DiskSize: resource.MustParse("24Gi"), StorageClass: "sim-csi", SnapshotClass: "sim-snapclass",
			},
		})
	}
	return s
}

func (s *story) close() { s.source.Close() }

// tell runs the story until every image has ended.
func (s *story) tell(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.start = time.Now()
	if err := s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	for _, img := range s.images {
		if err := s.client.Create(ctx, img); err != nil {
			return fmt.Errorf("creating VMDiskImage %s: %w", img.Name, err)
		}
	}
	s.screen.say("12 VMDiskImages applied; the policy allows %d at a time", firstBudget)
	for ticker := time.NewTicker(tick); ; {
		images, ledger, err := s.look(ctx)
		if err != nil {
			return err
		}
		s.screen.show(time.Since(s.start), images, ledger)
		ready := count(images, v1alpha1.PhaseSucceeded)
		if ready+count(images, v1alpha1.PhaseFailed) == len(s.images) {
			ticker.Stop()
			s.images = images
			return nil
		}
		if ready >= raiseAfter && !s.raised {
			s.raised = true
			if err := s.raise(ctx); err != nil {
				return err
			}
			s.screen.say("policy ConfigMap changed: concurrency %d -> %d", firstBudget, raisedBudget)
		}
		select {
		case <-ctx.Done():
			ticker.Stop()
			return fmt.Errorf("not all images have ended after %s: %w", patience, ctx.Err())
		case <-ticker.C:
		}
	}
}

func (s *story) look(ctx context.Context) ([]*v1alpha1.VMDiskImage, *v1alpha1.SyncLedger, error) {
	var list v1alpha1.VMDiskImageList
	if err := s.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, nil, fmt.Errorf("listing VMDiskImages: %w", err)
	}
	byName := map[string]*v1alpha1.VMDiskImage{}
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	images := make([]*v1alpha1.VMDiskImage, 0, len(s.images))
	for _, img := range s.images {
		if now := byName[img.Name]; now != nil {
			images = append(images, now)
		}
	}
	ledger := &v1alpha1.SyncLedger{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.LedgerName}, ledger)
	return images, ledger, client.IgnoreNotFound(err)
}

func (s *story) raise(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: agent.PolicyNamespace, Name: agent.PolicyName}, cm); err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	cm.Data["concurrency"] = fmt.Sprint(raisedBudget)
	if err := s.client.Update(ctx, cm); err != nil {
		return fmt.Errorf("raising the policy: %w", err)
	}
	return nil
}

func count(images []*v1alpha1.VMDiskImage, phase v1alpha1.Phase) int {
	n := 0
	for _, img := range images {
		if img.Status.Phase == phase {
			n++
		}
	}
	return n
}

// summarize says what came of it, by the observer's own account, and fails
// where a promise was broken.
func (s *story) summarize(h observer.History) error {
	var wrong []string
	check := func(holds bool, format string, args ...any) {
		mark := "yes"
		if !holds {
			mark = "NO "
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
		fmt.Printf("  %s  %s\n", mark, fmt.Sprintf(format, args...))
	}
	fmt.Printf("\nAfter %.0f s, by an observer that reads no status of the agent's:\n", time.Since(s.start).Seconds())
	check(len(h.OverBudget()) == 0, "never more downloads than the policy allowed (%d at the most)", h.MostRunning())
	check(h.MostRunning() > firstBudget, "the raised policy was used without a restart")
	order, want := h.StartOrder(), h.ArrivalOrder()
	want = slices.DeleteFunc(want, func(uid types.UID) bool { return !slices.Contains(order, uid) })
	check(slices.Equal(order, want), "first in, first out")
	check(len(h.Reused()) == 0, "no DataVolume was created twice")
	for _, img := range s.images {
		switch img.Name {
		case "breaks-off-once":
			check(img.Status.Phase == v1alpha1.PhaseSucceeded && h.Attempts(img.UID) == 2, "%s healed with its second attempt", img.Name)
		case "no-such-image":
			check(img.Status.Phase == v1alpha1.PhaseFailed && h.Attempts(img.UID) == 0, "%s failed as %s and cost no download", img.Name, img.Status.Reason)
		}
	}
	check(count(s.images, v1alpha1.PhaseSucceeded) == len(s.images)-1, "%d of %d images are ready to clone VMs from", count(s.images, v1alpha1.PhaseSucceeded), len(s.images))
	if len(wrong) > 0 {
		return fmt.Errorf("%d of the checks above failed: %s", len(wrong), strings.Join(wrong, "; "))
	}
	fmt.Println("\nThe same, kept as tests: go test ./e2e/journeys ./e2e/faults")
	return nil
}
