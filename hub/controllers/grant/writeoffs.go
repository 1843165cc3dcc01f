package grant

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/storedtime"
)

// AnnotationWriteOff of ConfigMap ot-hub-departed writes off what a departed member may be
// running, as in "frankfurt by alice". ValidatingAdmissionPolicy ot-hub-writeoffs makes
// sure that it names who writes it. The hub takes it up and removes it.
const AnnotationWriteOff = "pelotech.ot/write-off"

// writtenOffKey has the last write-offs.
const writtenOffKey = "writtenOff"

const (
	// writeOffInterval is how often the ConfigMap is read for a write-off, while
	// something could be written off.
	writeOffInterval = 10 * time.Second
	// maxWriteOffs bounds the list.
	maxWriteOffs = 100
)

// writeOff is an entry of the list: who wrote off what a departed member held, and when
// the hub took that up.
type writeOff struct {
	Member string      `json:"member"`
	By     string      `json:"by"`
	At     metav1.Time `json:"at"`
	Slots  int32       `json:"slots"`
}

// parseWriteOff reads the annotation.
func parseWriteOff(text string) (w writeOff, err error) {
	member, by, found := strings.Cut(text, " by ")
	if member, by = strings.TrimSpace(member), strings.TrimSpace(by); !found || member == "" || by == "" || strings.ContainsAny(member, " /") {
		return w, fmt.Errorf("%q is not \"<member> by <user>\"", text)
	}
	return writeOff{Member: member, By: by}, nil
}

// applyWriteOff takes up a write-off. The ConfigMap is written afterwards without the
// annotation, and with the write-off in its list. A write-off of a leaving member waits
// until it has left.
//
// Invariant: a write-off is for what was stored when it was made. It does not wait for a
// later departure.
func (r *Reconciler) applyWriteOff(ctx context.Context, leaving []string, now time.Time) {
	if r.departures.configMap == nil || now.Before(r.departures.readWriteOffAt) {
		return
	}
	r.departures.readWriteOffAt = now.Add(writeOffInterval)
	cm := &corev1.ConfigMap{}
	if err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: DepartedConfigMap}, cm); err != nil {
		if !apierrors.IsNotFound(err) {
			log.FromContext(ctx).Error(err, "Failed to read write-offs; retrying")
		}
		return
	}
	text, asked := cm.Annotations[AnnotationWriteOff]
	if !asked || cm.Data[departedKey] != r.departures.configMap.Data[departedKey] {
		return // somebody else has written what is held: a conflict has it read again
	}
	w, err := parseWriteOff(text)
	switch {
	case err != nil:
		log.FromContext(ctx).Error(err, "Failed to apply a write-off; removing it", "annotation", AnnotationWriteOff)
	case slices.Contains(leaving, w.Member):
		r.departures.configMap = cm
		return
	case !r.departures.holds(w.Member):
		log.FromContext(ctx).Info("Nothing is held for the member of a write-off; removing it", "member", w.Member, "by", w.By)
	default:
		w.At = storedtime.Truncate(now)
		for _, d := range r.accountant.Departures(nil, now) {
			if d.Member == w.Member {
				w.Slots = max(w.Slots, d.Slots)
			}
		}
		r.accountant.WriteOff(w.Member)
		log.FromContext(ctx).Info("Wrote off what a departed member may be running", "member", w.Member, "by", w.By, "slots", w.Slots)
		if err := appendWriteOff(cm, w); err != nil {
			log.FromContext(ctx).Error(err, "Failed to read the list of write-offs; starting a new one")
		}
	}
	delete(cm.Annotations, AnnotationWriteOff)
	r.departures.configMap, r.departures.writtenOff = cm, true
}

// dropEarlyWriteOff removes a write-off from a ConfigMap that is about to be written, if
// the stored version holds nothing for its member.
func (r *Reconciler) dropEarlyWriteOff(ctx context.Context, cm *corev1.ConfigMap, leaving []string) {
	text, asked := cm.Annotations[AnnotationWriteOff]
	if w, err := parseWriteOff(text); asked && err == nil && !r.departures.holds(w.Member) && !slices.Contains(leaving, w.Member) {
		log.FromContext(ctx).Info("Nothing is held for the member of a write-off; removing it", "member", w.Member, "by", w.By)
		delete(cm.Annotations, AnnotationWriteOff)
	}
}

// holds reports whether something is stored for a member.
func (d *departureStore) holds(member string) bool {
	return slices.ContainsFunc(d.stored, func(o storedDeparture) bool { return o.Member == member })
}

func appendWriteOff(cm *corev1.ConfigMap, w writeOff) (err error) {
	var all []writeOff
	if text := cm.Data[writtenOffKey]; text != "" {
		err = json.Unmarshal([]byte(text), &all)
	}
	all = append(all, w)
	text, encodeErr := json.Marshal(all[max(0, len(all)-maxWriteOffs):])
	if encodeErr != nil {
		panic(encodeErr) // plain types of this package
	}
	cm.Data[writtenOffKey] = string(text)
	return err
}
