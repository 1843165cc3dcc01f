package image

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fieldAnswerMaxAge is how long an answer about the fields of DataVolumes is used.
const fieldAnswerMaxAge = 10 * time.Second

// fieldAnswers remembers which fields of DataVolumes the CRD lacks, by the set of fields that
// are set: there are as many sets as kinds of sources and options.
type fieldAnswers struct {
	mu    sync.Mutex
	bySet map[string]fieldAnswer
}

type fieldAnswer struct {
	unknown []string
	at      time.Time
}

func (a *fieldAnswers) get(set string) ([]string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer, found := a.bySet[set]
	return answer.unknown, found && time.Since(answer.at) < fieldAnswerMaxAge
}

func (a *fieldAnswers) set(set string, unknown []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bySet == nil {
		a.bySet = map[string]fieldAnswer{}
	}
	a.bySet[set] = fieldAnswer{unknown, time.Now()}
}

// findUnknownFieldBlocker asks the API server, by a strict dry run of the image's next
// DataVolume, whether the CRD of DataVolumes has all fields that it needs. Fields are
// checked before admission, so any other refusal means that none is unknown. Where the
// question itself fails, the strict create of the DataVolume decides.
func (r *Reconciler) findUnknownFieldBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) *image.Blocker {
	key, attempt := image.KeyOf(img), img.Status.LastAttempt+1
	dv := image.NewDataVolume(img, v1alpha1.Slot{Image: key, Revision: img.Spec.Revision(), Attempt: attempt, DataVolume: ledger.DataVolumeName(key, attempt)})
	set := describeFieldSet(dv)
	unknown, known := r.fieldAnswers.get(set)
	if !known {
		unknown = apidiscovery.UnknownFields(r.Create(ctx, dv, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)))
		r.fieldAnswers.set(set, unknown)
	}
	if len(unknown) == 0 {
		return nil
	}
	return &image.Blocker{Reason: v1alpha1.ReasonCDITooOld, Message: image.UnknownFieldsMessage(unknown)}
}

// describeFieldSet returns the paths of the fields that are set in the spec of a DataVolume.
func describeFieldSet(dv *cdiv1.DataVolume) string {
	var spec map[string]any
	if text, err := json.Marshal(dv.Spec); err == nil {
		_ = json.Unmarshal(text, &spec)
	}
	return strings.Join(listFieldPaths(spec, ""), " ")
}

func listFieldPaths(fields map[string]any, parent string) (paths []string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		path := parent + "." + name
		paths = append(paths, path)
		if inner, ok := fields[name].(map[string]any); ok {
			paths = append(paths, listFieldPaths(inner, path)...)
		}
	}
	return paths
}
