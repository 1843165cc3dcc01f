package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// provisionerName is that of local-path-provisioner, which this replaces.
	provisionerName = "rancher.io/local-path"
	// volumesDir is the directory of volumes in the node's file system.
	volumesDir = "/var/local-path-provisioner"

	selectedNodeAnnotation  = "volume.kubernetes.io/selected-node"
	provisionedByAnnotation = "pv.kubernetes.io/provisioned-by"
	hostnameLabel           = "kubernetes.io/hostname"
)

// localStorage provisions a directory of this node for each claim whose Pod is scheduled here, and
// deletes it with the claim.
type localStorage struct {
	client kubernetes.Interface
	node   string
}

func (s *localStorage) provisionVolumes(ctx context.Context) error {
	claims, err := s.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing the claims: %w", err)
	}
	var failed []error
	for i := range claims.Items {
		claim := &claims.Items[i]
		if !isClaimForNode(claim, s.node) {
			continue
		}
		class, err := s.client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
		if err != nil {
			failed = append(failed, fmt.Errorf("reading the storage class of claim %s/%s: %w", claim.Namespace, claim.Name, err))
			continue
		}
		if class.Provisioner != provisionerName {
			continue
		}
		failed = append(failed, s.createVolume(ctx, newVolumeFor(claim, class, s.node)))
	}
	return errors.Join(failed...)
}

// isClaimForNode reports whether a claim waits for a volume of a node. Claims with a data source are
// for populators.
func isClaimForNode(claim *corev1.PersistentVolumeClaim, node string) bool {
	return claim.Status.Phase == corev1.ClaimPending && claim.DeletionTimestamp == nil &&
		claim.Spec.VolumeName == "" && claim.Spec.DataSource == nil && claim.Spec.DataSourceRef == nil &&
		claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName != "" &&
		claim.Annotations[selectedNodeAnnotation] == node &&
		(claim.Spec.VolumeMode == nil || *claim.Spec.VolumeMode == corev1.PersistentVolumeFilesystem)
}

func newVolumeFor(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node string) *corev1.PersistentVolume {
	name, kind, reclaim := "pvc-"+string(claim.UID), corev1.HostPathDirectoryOrCreate, corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedByAnnotation: provisionerName, selectedNodeAnnotation: node}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:              class.Name,
			PersistentVolumeReclaimPolicy: reclaim,
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(volumesDir, name), Type: &kind},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: hostnameLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

func (s *localStorage) createVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	directory := hostRoot + volume.Spec.HostPath.Path
	if err := os.MkdirAll(directory, 0o777); err != nil {
		return fmt.Errorf("making the directory of volume %s: %w", volume.Name, err)
	}
	// Importers do not run as root: restore the permissions that the umask removed.
	if err := os.Chmod(directory, 0o777); err != nil {
		return fmt.Errorf("opening the directory of volume %s: %w", volume.Name, err)
	}
	_, err := s.client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err != nil:
		return fmt.Errorf("creating volume %s: %w", volume.Name, err)
	}
	log.Printf("volume %s for claim %s/%s", volume.Name, volume.Spec.ClaimRef.Namespace, volume.Spec.ClaimRef.Name)
	return nil
}

func (s *localStorage) deleteReleasedVolumes(ctx context.Context) error {
	list, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing the volumes: %w", err)
	}
	var failed []error
	for i := range list.Items {
		volume := &list.Items[i]
		if !isReleased(volume, s.node) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(hostRoot, volumesDir, filepath.Base(volume.Spec.HostPath.Path))); err != nil {
			failed = append(failed, fmt.Errorf("removing the directory of volume %s: %w", volume.Name, err))
			continue
		}
		err := s.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &volume.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("deleting volume %s: %w", volume.Name, err))
		}
	}
	return errors.Join(failed...)
}

func isReleased(volume *corev1.PersistentVolume, node string) bool {
	return volume.Status.Phase == corev1.VolumeReleased && volume.DeletionTimestamp == nil &&
		volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		volume.Annotations[provisionedByAnnotation] == provisionerName && volume.Annotations[selectedNodeAnnotation] == node &&
		volume.Spec.HostPath != nil
}
