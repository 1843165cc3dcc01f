package image

import (
	"fmt"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// reconcileDataSource serves what the image's DataSource points at.
//
// Invariant: claim and snapshot belong to others. They get no attempt and no label, and no
// Decision names them but in status.serving: what is deleted comes from ObjectsByAttempt, which
// holds what carries the image's UID.
func (d *decider) reconcileDataSource() {
	d.status.Progress, d.status.BytesDone, d.status.BytesTotal, d.status.QueuePosition = "", 0, 0, nil
	rev := findRevision(d.status.Revisions, d.targetRevision)
	rev.Source = "DataSource " + DataSourceKey(d.Image).String()
	rev.Failure, rev.NotBefore = nil, nil
	d.requeueWithin(blockerRecheckInterval) // claims and snapshots of others are not watched
	if blocker := d.DataSource.Blocker; blocker != nil {
		if d.isServing(d.targetRevision) {
			d.status.Serving = nil
		}
		d.setActivity(blocker.Reason, blocker.Message)
		d.activity.NeedsPerson = blocker.NeedsPerson
		return
	}
	d.status.Serving = d.DataSource.Serving.DeepCopy()
	d.setActivity(v1alpha1.ReasonReady, fmt.Sprintf("ready: disks are cloned from %s, which %s points at", describeServing(d.status.Serving), rev.Source))
}

// describeServing names what disks are cloned from.
func describeServing(serving *v1alpha1.Serving) string {
	if serving.VolumeSnapshot != "" {
		return fmt.Sprintf("VolumeSnapshot %s/%s", serving.Namespace, serving.VolumeSnapshot)
	}
	return fmt.Sprintf("PersistentVolumeClaim %s/%s", serving.Namespace, serving.PersistentVolumeClaim)
}

// belongsToOthers reports whether claim and snapshot are those of a DataSource of others.
func belongsToOthers(serving *v1alpha1.Serving) bool { return serving.Namespace != "" }
