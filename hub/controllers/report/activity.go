package report

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// readActivity reads the activity of a member if it has changed. Nothing else depends on it:
// one that is missing, or that cannot be decoded, makes only itself unknown.
func (r *Reconciler) readActivity(ctx context.Context, member string, report *readReport, stored map[string]*metav1.PartialObjectMetadata) error {
	known := stored[v1alpha1.ActivityName]
	switch {
	case known == nil && report.activityVersion == "":
		return nil
	case known != nil && known.ResourceVersion == report.activityVersion:
		return nil
	}
	var activity *v1alpha1.ReportedActivity
	version := ""
	if known != nil {
		live, err := r.readStoredIn(stored)(ctx, member, v1alpha1.ActivityName)
		switch {
		case errors.Is(err, errUndecodable): // read again with the next change of the report
		case err != nil:
			return err
		case live != nil:
			activity, version = live.Activity, live.ResourceVersion
		}
	}
	r.Index.SetActivity(member, activity, time.Now())
	report.activityVersion = version
	return nil
}
