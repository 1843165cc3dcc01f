//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// The images of the fleet in the background.
const (
	// nightlyPrefix begins the names of those that come and go.
	nightlyPrefix = "nightly-"
	// nightliesWaiting is how many of them a cluster is to import, and nightliesKept how many
	// that are ready stay.
	nightliesWaiting, nightliesKept = 5, 4
	missingImage                    = "no-such-image"
	productionWave                  = "production"
	firstPatience                   = 5 * time.Minute
	// estimatePatience is for imports to end: without them there is no expected time.
	estimatePatience = time.Minute
)

// Where the sources are.
const originAddress, mirrorAddress = "127.0.0.1:0", "127.0.0.2:0"

// newSource returns a source that answers HEAD requests and serves no bytes. /missing/ is not
// there; a number in the path is the size in GiB.
func newSource(address string) *httptest.Server {
	source := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		for segment := range strings.SplitSeq(r.URL.Path, "/") {
			if size, err := strconv.ParseInt(segment, 10, 8); err == nil && r.Method == http.MethodHead {
				w.Header().Set("Content-Length", strconv.FormatInt(size<<30, 10))
			}
		}
	}))
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		panic(fmt.Errorf("starting a source of images: %w", err))
	}
	_ = source.Listener.Close() // that of 127.0.0.1
	source.Listener = listener
	source.Start()
	return source
}

// traffic keeps something moving: images come, are imported and go, a rollout waits for approval.
type traffic struct {
	*demoFleet
	// mirror is the source at edge's site.
	source, mirror *httptest.Server
	// next is the number of a member's next nightly image.
	next map[string]int
}

func newTraffic(f *demoFleet) *traffic {
	return &traffic{demoFleet: f, source: newSource(originAddress), mirror: newSource(mirrorAddress), next: map[string]int{}}
}

func (t *traffic) close() {
	t.source.Close()
	t.mirror.Close()
}

// image returns an image that takes some seconds for its bytes.
func (t *traffic) image(name string, seconds, gibibytes int) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: fmt.Sprintf("%s/ok/%ds/%d/%s.qcow2", t.source.URL, seconds, gibibytes, name),
			DiskSize: resource.MustParse("24Gi"), StorageClass: simulator.ClassCSI,
		},
	}
}

// awaitCondition polls until a condition holds. Agents and hub that end meanwhile are started again.
func (t *traffic) awaitCondition(ctx context.Context, holds func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, pollInterval, firstPatience, true, func(ctx context.Context) (bool, error) {
		if err := t.restartEnded(ctx); err != nil {
			return false, err
		}
		return holds(ctx)
	})
}

// awaitPolicy waits until all members follow the policy: they ask the source for the sizes of
// images only where it allows that.
func (t *traffic) awaitPolicy(ctx context.Context) error {
	return t.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		var members v1alpha1.MemberClusterList
		if err := t.client.List(ctx, &members); err != nil {
			return false, err
		}
		following := 0
		for i := range members.Items {
			if meta.IsStatusConditionTrue(members.Items[i].Status.Conditions, v1alpha1.ConditionPolicyAcknowledged) {
				following++
			}
		}
		return following == len(memberNames), nil
	})
}

// populate creates what is there from the start.
func (t *traffic) populate(ctx context.Context) error {
	for _, name := range memberNames {
		objects := []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			t.image("alpine-3", 1, 1), t.image("debian-13", 2, 2), t.image("fedora-42", 3, 3), t.image("rocky-9", 2, 2),
		}
		switch name {
		case bergen:
			objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspaceNamespace}}, t.image(desktop, 30, 4), newVM(desk1, desktop), newVM(desk2, desktop))
		case lab:
			broken := t.image(missingImage, 1, 1)
			broken.Spec.URL = t.source.URL + "/missing/disk.qcow2"
			objects = append(objects, broken)
		}
		for _, object := range objects {
			if err := t.demoFleet.members[name].Client().Create(ctx, object); err != nil {
				return fmt.Errorf("creating %T %s in %s: %w", object, object.GetName(), name, err)
			}
		}
	}
	template := t.image(golden, 3, 6)
	rollout := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: golden},
		Spec: v1alpha1.FleetDiskImageSpec{
			Version: goldenVersion, TargetNamespace: namespace, Template: template.Spec, Overrides: newOverrides(t.mirror.URL + "/ok/3s/6"),
			Placement: v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}},
			Rollout: v1alpha1.Rollout{Waves: []v1alpha1.Wave{
				{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{canaryLabel: "true"}}},
				{Name: productionWave, ClusterSelector: metav1.LabelSelector{}, RequireApproval: true},
			}},
		},
	}
	if err := t.client.Create(ctx, rollout); err != nil {
		return fmt.Errorf("creating FleetDiskImage %s: %w", golden, err)
	}
	return nil
}

// awaitFirst waits for a moment until expected times can be given in bergen, and until an image
// waits for a slot there, and the rollout for its approval.
func (t *traffic) awaitFirst(ctx context.Context) error {
	if err := t.move(ctx); err != nil {
		return err
	}
	estimates := time.Now().Add(estimatePatience)
	return t.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		rollout := &v1alpha1.FleetDiskImage{}
		if err := t.client.Get(ctx, client.ObjectKey{Name: golden}, rollout); err != nil {
			return false, err
		}
		var reports v1alpha1.ClusterReportList
		if err := t.client.List(ctx, &reports, client.InNamespace(v1alpha1.MemberNamespacePrefix+bergen)); err != nil {
			return false, err
		}
		return rollout.Status.Reason == v1alpha1.ReasonAwaitingApproval && slices.ContainsFunc(reports.Items, func(r v1alpha1.ClusterReport) bool {
			return r.Activity != nil && len(r.Activity.Head) > 0 && (time.Now().After(estimates) || slices.ContainsFunc(r.Activity.Rates, func(rate v1alpha1.SourceRate) bool { return rate.Samples >= eta.MinSamples }))
		}), nil
	})
}

// move gives each cluster new images to import and deletes the oldest that are ready.
func (t *traffic) move(ctx context.Context) error {
	var errs []error
	for _, name := range memberNames {
		if err := t.moveMember(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("moving images of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (t *traffic) moveMember(ctx context.Context, name string) error {
	c := t.demoFleet.members[name].Client()
	var images v1alpha1.VMDiskImageList
	if err := c.List(ctx, &images, client.InNamespace(namespace)); err != nil {
		return err
	}
	var ready []v1alpha1.VMDiskImage
	waiting := 0
	for i := range images.Items {
		img := &images.Items[i]
		switch {
		case !strings.HasPrefix(img.Name, nightlyPrefix) || img.DeletionTimestamp != nil:
		case img.Status.Phase == v1alpha1.PhaseSucceeded || img.Status.Phase == v1alpha1.PhaseFailed:
			ready = append(ready, *img)
		default:
			waiting++
		}
	}
	slices.SortFunc(ready, func(a, b v1alpha1.VMDiskImage) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range max(0, len(ready)-nightliesKept) {
		if err := client.IgnoreNotFound(c.Delete(ctx, &ready[i])); err != nil {
			return err
		}
	}
	for ; waiting < nightliesWaiting; waiting++ {
		t.next[name]++
		n := t.next[name]
		if err := c.Create(ctx, t.image(nightlyPrefix+strconv.Itoa(n), 45+30*(n%4), 2+n%3)); err != nil {
			return err
		}
	}
	return nil
}
