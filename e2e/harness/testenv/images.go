//go:build linux

package testenv

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// CreateHomeNamespace creates a namespace. When the test ends, it deletes the ClusterPlan
// and waits until the namespace's images are gone: a stuck image would keep its slot from
// the next tests.
func (s *Env) CreateHomeNamespace(t *testing.T) string {
	t.Helper()
	ns := s.CreateNamespace(t)
	t.Cleanup(func() {
		ctx, c := context.Background(), s.Client()
		if t.Failed() {
			t.Log(s.DescribeImports(ctx, ns))
		}
		assert.NoError(t, client.IgnoreNotFound(c.Delete(ctx, EmptyPlan())))
		assert.NoError(t, c.DeleteAllOf(ctx, &v1alpha1.VMDiskImage{}, client.InNamespace(ns)))
		var left v1alpha1.VMDiskImageList
		assert.True(t, AwaitCondition(t, func() bool {
			left = v1alpha1.VMDiskImageList{}
			return c.List(ctx, &left, client.InNamespace(ns)) == nil && len(left.Items) == 0
		}), "images that are not deleted: %+v", &left)
	})
	return ns
}

// NewPolicy returns a policy with short waits and some of its keys changed.
func NewPolicy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "100ms", "preflightAllow": SourceNetwork}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// DescribeImports returns the state of the images and imports of a namespace, which programs of the
// cluster have exited, and the end of the agent's log, for a failure message.
func (s *Env) DescribeImports(ctx context.Context, ns string) string {
	var text strings.Builder
	if ended := s.ListEnded(); len(ended) > 0 {
		fmt.Fprintf(&text, "programs that have exited, by their logs: %v\n", ended)
	}
	about := func(o client.Object) string {
		if deleted := o.GetDeletionTimestamp(); deleted != nil {
			return fmt.Sprintf("%s (deleted at %s, kept by %v)", o.GetName(), deleted.Format(time.TimeOnly), o.GetFinalizers())
		}
		return o.GetName()
	}
	var images v1alpha1.VMDiskImageList
	var dvs cdiv1.DataVolumeList
	var claims corev1.PersistentVolumeClaimList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&images, &dvs, &claims, &pods} {
		_ = s.Client().List(ctx, list, client.InNamespace(ns))
	}
	for i := range images.Items {
		img := &images.Items[i]
		fmt.Fprintf(&text, "VMDiskImage %s generation %d %s: %s\n", about(img), img.Generation, img.Status.Phase, img.Status.Message)
	}
	for i := range dvs.Items {
		fmt.Fprintf(&text, "DataVolume %s %+v\n", about(&dvs.Items[i]), dvs.Items[i].Status)
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		fmt.Fprintf(&text, "PersistentVolumeClaim %s %s %v on %q\n", about(c), c.Status.Phase, c.Annotations, c.Spec.VolumeName)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		fmt.Fprintf(&text, "Pod %s on %q %s %+v\n", about(p), p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses)
	}
	if s.Agent != nil {
		fmt.Fprintf(&text, "the agent's log ends:\n%s", readEnd(s.Agent.LogFile(), 8<<10))
	}
	return text.String()
}

// readEnd returns the last bytes of a file, or why it cannot be read.
func readEnd(path string, limit int) []byte {
	content, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	return content[max(0, len(content)-limit):]
}

// AwaitSucceeded waits until an image is ready to use.
func (s *Env) AwaitSucceeded(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return s.AwaitImage(t, img, InPhase(v1alpha1.PhaseSucceeded))
}

// AwaitFailed waits until an image has failed for a reason.
func (s *Env) AwaitFailed(t *testing.T, img *v1alpha1.VMDiskImage, reason v1alpha1.Reason) *v1alpha1.VMDiskImage {
	t.Helper()
	return s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseFailed && img.Status.Reason == reason
	})
}

// AwaitImporting waits until an importer of an image runs and the attempt is in the image's
// status, and returns the attempt's DataVolume. Only the Pod shows that the import runs: CDI
// may report nothing before it makes progress, and a hanging one makes none.
func (s *Env) AwaitImporting(t *testing.T, img *v1alpha1.VMDiskImage) *cdiv1.DataVolume {
	t.Helper()
	var found *cdiv1.DataVolume
	require.True(t, AwaitCondition(t, func() bool {
		dvs := s.ListDataVolumes(t, img)
		if len(dvs) != 1 || dvs[0].DeletionTimestamp != nil || s.CountRunningImporters(t, img.Namespace, v1alpha1.LabelImageUID, string(img.UID), v1alpha1.LabelAttempt, dvs[0].Labels[v1alpha1.LabelAttempt]) == 0 {
			return false
		}
		got := &v1alpha1.VMDiskImage{}
		found = &dvs[0]
		return s.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && len(got.Status.Revisions) > 0 &&
			got.Status.Revisions[0].DataVolume == found.Name
	}), "image %s is not being imported", img.Name)
	return found
}

// CountRunningImporters counts the running importer Pods of a namespace with the labels.
func (s *Env) CountRunningImporters(t *testing.T, ns string, labelsAndValues ...string) int {
	t.Helper()
	match := client.MatchingLabels{"cdi.kubevirt.io": "importer"}
	for i := 0; i < len(labelsAndValues); i += 2 {
		match[labelsAndValues[i]] = labelsAndValues[i+1]
	}
	var pods corev1.PodList
	require.NoError(t, s.Client().List(t.Context(), &pods, client.InNamespace(ns), match))
	running := 0
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil && pods.Items[i].Status.Phase == corev1.PodRunning {
			running++
		}
	}
	return running
}

// ListDataVolumes lists the DataVolumes of an image's attempts.
func (s *Env) ListDataVolumes(t *testing.T, img *v1alpha1.VMDiskImage) []cdiv1.DataVolume {
	t.Helper()
	var list cdiv1.DataVolumeList
	require.NoError(t, s.Client().List(t.Context(), &list, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
	return list.Items
}

// ImportImage creates an image and waits until it has succeeded.
func (s *Env) ImportImage(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	s.Create(t, img)
	return s.AwaitSucceeded(t, img)
}

// ObserveTest starts an observer. The function it returns checks S1, and that no DataVolume
// name was used twice, over all that happened since.
func (s *Env) ObserveTest(t *testing.T) func() observer.History {
	t.Helper()
	o := s.StartObserver(t)
	return func() observer.History {
		t.Helper()
		h := History(t, o)
		assert.Empty(t, h.BudgetViolations())
		assert.Empty(t, h.ReusedNames())
		return h
	}
}

// EmptyPlan returns the ClusterPlan without a spec.
func EmptyPlan() *v1alpha1.ClusterPlan {
	return &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}}
}

// ReadReportedImage returns what the agent reports of an image; the zero value for nothing.
func (s *Env) ReadReportedImage(t *testing.T, img *v1alpha1.VMDiskImage) v1alpha1.ReportedImage {
	t.Helper()
	return FindReportedImage(t, s.Client(), program.AgentNamespace, client.ObjectKeyFromObject(img))
}

// FindReportedImage returns what the ClusterReports in a namespace say of an image; the zero
// value for nothing.
func FindReportedImage(t *testing.T, c client.Reader, mailbox string, image client.ObjectKey) v1alpha1.ReportedImage {
	t.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(t, c.List(t.Context(), &list, client.InNamespace(mailbox)))
	for i := range list.Items {
		page := list.Items[i].Page
		for n := 0; page != nil && n < len(page.Images); n++ {
			if entry := &page.Images[n]; entry.Namespace == image.Namespace && entry.Name == image.Name {
				return *entry
			}
		}
	}
	return v1alpha1.ReportedImage{}
}
