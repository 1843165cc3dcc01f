package reportlimits

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// MaxClusterBytes is more than a cluster stores. Sums of thousands of such clusters fit into an
// int64, sums of images of maxImageBytes do not.
const MaxClusterBytes = 1 << 50

// Bounds of what a report says in numbers. Sums over a fleet of honest members stay far below
// those of their types. Who sums up what many images take bounds that sum, too.
const (
	maxCount = 1 << 18
	// maxNumber bounds sequences and sizes: JSON has no larger exact integers.
	maxNumber = 1<<53 - 1
	// maxImageBytes is twice the largest disk.
	maxImageBytes = 128 << 40
)

// Times beyond these cannot be stored again: in UTC they may lie in year 0 or 10000.
var (
	firstTime = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9998, 12, 31, 0, 0, 0, 0, time.UTC)
)

// Bound returns a root or page within all limits: a copy, unless it is within them already. The
// schema admits more than any agent writes, and what a member says is copied and summed up.
// An activity has bounds of its own: see package inventory.
func Bound(report *v1alpha1.ClusterReport) *v1alpha1.ClusterReport {
	if report == nil || !boundReport(report, false) {
		return report
	}
	bounded := report.DeepCopy()
	boundReport(bounded, true)
	return bounded
}

// boundReport reports whether anything is beyond its bounds, and changes it if asked to.
func boundReport(report *v1alpha1.ClusterReport, change bool) (beyond bool) {
	if root := report.Root; root != nil {
		// The heartbeat is no count, and the member's status shows what the member said.
		counted := *root
		counted.HeartbeatSeconds = min(root.HeartbeatSeconds, maxCount)
		beyond = boundValue(reflect.ValueOf(&counted), change)
		if change {
			counted.HeartbeatSeconds = max(root.HeartbeatSeconds, 0)
			*root = counted
		}
		for _, policy := range []*map[string]string{&root.Policy, &root.PlanPolicy} {
			beyond = boundPolicy(policy, change) || beyond
		}
		for i := range root.Orphans {
			beyond = boundBytes(&root.Orphans[i].Bytes, maxImageBytes, change) || beyond
		}
		beyond = boundBytes(&root.OrphanBytes, MaxClusterBytes, change) || beyond
	}
	if page := report.Page; page != nil {
		beyond = boundValue(reflect.ValueOf(page), change) || beyond
		for i := range page.Images {
			img := &page.Images[i]
			beyond = boundBytes(&img.Bytes, maxImageBytes, change) || beyond
			beyond = boundBytes(&img.DownloadBytes, maxImageBytes, change) || beyond
		}
	}
	return beyond
}

func boundBytes(n *int64, most int64, change bool) (beyond bool) {
	beyond = *n > most
	if beyond && change {
		*n = most
	}
	return beyond
}

// boundValue bounds all numbers and times of a value. None of a report may be negative.
func boundValue(v reflect.Value, change bool) (beyond bool) {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && boundValue(v.Elem(), change)
	case reflect.Slice:
		for i := range v.Len() {
			beyond = boundValue(v.Index(i), change) || beyond
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			if boundValue(value, change) {
				beyond = true
				if change {
					v.SetMapIndex(key, value)
				}
			}
		}
	case reflect.Struct:
		if at, isTime := v.Addr().Interface().(*metav1.Time); isTime {
			return boundTime(at, change)
		}
		for i := range v.NumField() {
			beyond = boundValue(v.Field(i), change) || beyond
		}
	case reflect.Int32, reflect.Int64:
		most := int64(maxNumber)
		if v.Kind() == reflect.Int32 {
			most = maxCount
		}
		n := max(0, min(v.Int(), most))
		if beyond = n != v.Int(); beyond && change {
			v.SetInt(n)
		}
	}
	return beyond
}

// boundTime leaves a zero time: it is stored as none.
func boundTime(at *metav1.Time, change bool) (beyond bool) {
	next := at.Time
	switch {
	case at.IsZero():
	case next.Before(firstTime):
		next = firstTime
	case next.After(lastTime):
		next = lastTime
	}
	beyond = !next.Equal(at.Time)
	if beyond && change {
		*at = metav1.NewTime(next)
	}
	return beyond
}
