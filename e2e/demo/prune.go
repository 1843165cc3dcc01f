//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The image that is pruned: that of a deleted FleetDiskImage.
const (
	preview        = "preview"
	previewVersion = "0.9"
	previewImage   = preview + "-" + previewVersion

	pruneReportName = "clearing" // the PruneReport
	undonePrune     = "clearing-undone"
	finalPrune      = "clearing-for-good"
	// undoWindow is that of the final prune.
	undoWindow = 2 * time.Second
)

// pruneState is what the demo has seen of report and prunes.
type pruneState struct {
	preview v1alpha1.FleetDiskImage
	report  v1alpha1.PruneReport
	prunes  map[string]v1alpha1.ImagePrune
	// withdrawn is true once the preview's FleetDiskImage is deleted.
	withdrawn bool
	// listed are the images that existed when the report was made, by cluster/name, and
	// departing those that are being deleted already.
	listed    map[string]types.UID
	departing map[string]bool
	// servedOn is true if the preview was ready during its undo window, and stayed if it
	// was after the undo.
	servedOn, stayed bool
}

// previewActs create and delete the preview's FleetDiskImage.
func (s *demoStory) previewActs() []storyAct {
	img := newFleetImage(preview, previewVersion, s.sourceURL(previewImage), v1alpha1.Placement{ClusterNames: []string{lab}})
	return []storyAct{
		{func() bool { return true }, func(ctx context.Context) error {
			if err := s.client.Create(ctx, img); err != nil {
				return fmt.Errorf("creating FleetDiskImage %s: %w", preview, err)
			}
			s.screen.printNote("FleetDiskImage %s %s applied for lab", preview, previewVersion)
			return nil
		}},
		{func() bool {
			return s.preview.Status.Phase == v1alpha1.RolloutSucceeded && s.preview.Status.Clusters.Succeeded == 1
		}, func(ctx context.Context) error {
			if err := s.client.Delete(ctx, img); err != nil {
				return fmt.Errorf("deleting FleetDiskImage %s: %w", preview, err)
			}
			s.withdrawn = true
			s.screen.printNote("%s is in lab, and FleetDiskImage %s is deleted: the image stays until it is pruned", previewImage, preview)
			return nil
		}},
	}
}

// pruneActs report and prune images. They begin when the rollout has ended and the workspace has
// one desktop left.
func (s *demoStory) pruneActs() []storyAct {
	return []storyAct{
		{func() bool { return s.withdrawn && s.caughtUp && s.isOneDesktopLeft() }, func(ctx context.Context) error {
			r := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: pruneReportName}, Spec: v1alpha1.PruneReportSpec{
				ImageSelector: &v1alpha1.ImageSelector{Namespaces: []string{namespace}},
			}}
			if err := s.client.Create(ctx, r); err != nil {
				return fmt.Errorf("creating PruneReport %s: %w", pruneReportName, err)
			}
			s.screen.printNote("PruneReport %s asks all clusters for unreferenced images", pruneReportName)
			return nil
		}},
		{s.isReportReady, func(ctx context.Context) error {
			if err := s.readReport(ctx); err != nil {
				return err
			}
			return s.approvePrune(ctx, undonePrune, 10*time.Minute)
		}},
		{func() bool {
			return s.prunes[undonePrune].Status.Targets.Pending == 1 && s.isPreviewInPhase(v1alpha1.PhasePrunePending)
		}, func(ctx context.Context) error {
			img := s.findImage(lab, previewImage)
			s.servedOn = meta.IsStatusConditionTrue(img.Status.Conditions, v1alpha1.ConditionReady)
			if err := s.screen.runPlugin(ctx, done, "prune", "status", undonePrune); err != nil {
				return err
			}
			return s.screen.runPlugin(ctx, done, "prune", "undo", undonePrune)
		}},
		{func() bool {
			return s.prunes[undonePrune].Status.Phase == v1alpha1.ImagePruneUndone && s.isPreviewInPhase(v1alpha1.PhaseSucceeded)
		}, func(ctx context.Context) error {
			s.stayed = meta.IsStatusConditionTrue(s.findImage(lab, previewImage).Status.Conditions, v1alpha1.ConditionReady)
			s.screen.printNote("ImagePrune %s %s: %s is %s as before", undonePrune, v1alpha1.ImagePruneUndone, previewImage, v1alpha1.PhaseSucceeded)
			return s.approvePrune(ctx, finalPrune, undoWindow)
		}},
		{func() bool {
			return s.prunes[finalPrune].Status.Phase.IsFinal() && s.findImage(lab, previewImage) == nil
		}, func(ctx context.Context) error {
			return s.screen.runPlugin(ctx, done, "prune", "status", finalPrune)
		}},
	}
}

// approvePrune has the report's candidates that plans have created pruned.
func (s *demoStory) approvePrune(ctx context.Context, name string, window time.Duration) error {
	return s.screen.runPlugin(ctx, done, "prune", "approve", pruneReportName, "--digest", s.report.Status.Digest, "--yes", "--name", name, "--undo-window", window.String())
}

func (s *demoStory) isReportReady() bool {
	return s.report.Status.Phase == v1alpha1.PruneReportComplete
}

// readReport shows the report and records the existing images.
func (s *demoStory) readReport(ctx context.Context) error {
	if err := s.screen.runPlugin(ctx, done, "prune", "review", pruneReportName); err != nil {
		return err
	}
	var pages v1alpha1.PruneReportPageList
	err := s.client.List(ctx, &pages, client.MatchingLabels{v1alpha1.LabelPruneReport: string(s.report.UID)})
	if err != nil {
		return fmt.Errorf("reading the pages of PruneReport %s: %w", pruneReportName, err)
	}
	s.listed, s.departing = map[string]types.UID{}, map[string]bool{}
	for _, cluster := range memberNames {
		for i := range s.images[cluster] {
			s.listed[cluster+"/"+s.images[cluster][i].Name] = s.images[cluster][i].UID
		}
	}
	for _, page := range pages.Items {
		for i := range page.Clusters {
			s.recordDeparting(&page.Clusters[i])
		}
	}
	return nil
}

func (s *demoStory) recordDeparting(c *v1alpha1.ReportedCluster) {
	for _, k := range c.Kept {
		for _, key := range k.Images {
			if _, name, _ := strings.Cut(key, "/"); k.Reason == v1alpha1.KeptLeaving {
				s.departing[c.Cluster+"/"+name] = true
			}
		}
	}
}

// readPrunes reads report and prunes.
func (s *demoStory) readPrunes(ctx context.Context) error {
	s.prunes = map[string]v1alpha1.ImagePrune{}
	var prunes v1alpha1.ImagePruneList
	if err := s.client.List(ctx, &prunes); err != nil {
		return fmt.Errorf("listing ImagePrunes: %w", err)
	}
	for i := range prunes.Items {
		s.prunes[prunes.Items[i].Name] = prunes.Items[i]
	}
	s.preview, s.report = v1alpha1.FleetDiskImage{}, v1alpha1.PruneReport{}
	for name, into := range map[string]client.Object{preview: &s.preview, pruneReportName: &s.report} {
		if err := s.client.Get(ctx, client.ObjectKey{Name: name}, into); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading %T %s: %w", into, name, err)
		}
	}
	return nil
}

// findImage returns an image of a member; nil for none.
func (s *demoStory) findImage(cluster, name string) *v1alpha1.VMDiskImage {
	at := slices.IndexFunc(s.images[cluster], func(img v1alpha1.VMDiskImage) bool { return img.Name == name })
	if at < 0 {
		return nil
	}
	return &s.images[cluster][at]
}

func (s *demoStory) isPreviewInPhase(phase v1alpha1.Phase) bool {
	img := s.findImage(lab, previewImage)
	return img != nil && img.Status.Phase == phase
}

// checkPrune checks the outcome of the prunes by the images and claims that exist.
func (s *demoStory) checkPrune(ctx context.Context, check func(bool, string, ...any)) error {
	pruned := lab + "/" + previewImage
	var claims corev1.PersistentVolumeClaimList
	err := s.demoFleet.members[lab].Client().List(ctx, &claims, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(s.listed[pruned])})
	if err != nil {
		return fmt.Errorf("listing the claims of VMDiskImage %s: %w", previewImage, err)
	}
	check(s.servedOn && s.stayed, "lab: %s was ready during its undo window and after the undo", previewImage)
	check(s.listed[pruned] != "" && s.findImage(lab, previewImage) == nil && len(claims.Items) == 0, "lab: pruned for good, it is gone with its storage")
	var gone []string
	for key, uid := range s.listed {
		cluster, name, _ := strings.Cut(key, "/")
		if img := s.findImage(cluster, name); key != pruned && !s.departing[key] && (img == nil || img.UID != uid) {
			gone = append(gone, key)
		}
	}
	check(len(s.listed) > 1 && len(gone) == 0, "nothing else was pruned: images that the report keeps or that people created exist")
	return nil
}
