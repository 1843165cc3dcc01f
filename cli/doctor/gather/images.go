package gather

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/doctor"
)

func (r *reader) readImages(ctx context.Context) {
	var list v1alpha1.VMDiskImageList
	if !r.list(ctx, doctor.SourceImages, &list) {
		return
	}
	for i := range list.Items {
		img := &list.Items[i]
		if img.DeletionTimestamp == nil {
			imported := img.Status.Phase == v1alpha1.PhaseSyncing || img.Status.Phase == v1alpha1.PhaseSucceeded || img.Status.Phase == v1alpha1.PhasePrunePending
			r.addImage(img.Namespace, img.Name, &img.Spec, imported)
		}
	}
}

// addImage keeps what the checks need, and the Secrets that the image names.
func (r *reader) addImage(namespace, name string, spec *v1alpha1.VMDiskImageSpec, imported bool) {
	r.snapshot.Images = append(r.snapshot.Images, doctor.Image{
		Namespace: namespace, Name: name, SourceType: spec.SourceType, PullMethod: spec.PullMethod, URL: v1alpha1.RedactURL(spec.URL), Imported: imported,
		StorageClass: spec.StorageClass, SnapshotClass: spec.SnapshotClass, DiskSize: spec.DiskSize,
	})
	usedBy := "image " + namespace + "/" + name
	if spec.SecretRef != "" {
		keys := []string{"accessKeyId", "secretKey"}
		if spec.SourceType == v1alpha1.SourceGCS {
			keys = []string{"credentials.json"}
		}
		r.useSecret(doctor.SecretUse{Namespace: namespace, Name: spec.SecretRef, UsedBy: usedBy, Keys: keys})
	}
	for _, secret := range spec.SecretExtraHeaders {
		r.useSecret(doctor.SecretUse{Namespace: namespace, Name: secret, UsedBy: usedBy + " as headers"})
	}
}

// useSecret keeps one use of each Secret with the same keys.
func (r *reader) useSecret(use doctor.SecretUse) {
	known := slices.ContainsFunc(r.snapshot.Secrets, func(s doctor.SecretUse) bool {
		return s.Namespace == use.Namespace && s.Name == use.Name && slices.Equal(s.Keys, use.Keys)
	})
	if !known && len(r.snapshot.Secrets) < maxNamedReads {
		r.snapshot.Secrets = append(r.snapshot.Secrets, use)
	}
}

// readUses follows readImages: all three add to the same lists.
func (r *reader) readUses(ctx context.Context) {
	r.readPlannedImages(ctx)
	r.readMachines(ctx)
}

// readPlannedImages adds images that the hub plans and that are not there yet.
func (r *reader) readPlannedImages(ctx context.Context) {
	plan := &v1alpha1.ClusterPlan{}
	if !r.get(ctx, doctor.SourcePlan, r.options.AgentNamespace, v1alpha1.MailboxName, plan) {
		return
	}
	for i := range plan.Spec.Images {
		p := &plan.Spec.Images[i]
		known := slices.ContainsFunc(r.snapshot.Images, func(img doctor.Image) bool { return img.Namespace == p.Namespace && img.Name == p.Name })
		if !known {
			r.addImage(p.Namespace, p.Name, &p.Spec, false)
		}
	}
}

func (r *reader) readMachines(ctx context.Context) {
	var list v1alpha1.VirtualMachineList
	if !r.list(ctx, doctor.SourceMachines, &list) {
		return
	}
	r.snapshot.Machines = len(list.Items)
	for i := range list.Items {
		vm := &list.Items[i]
		usedBy := "machine " + vm.Namespace + "/" + vm.Name
		for _, user := range vm.Spec.Users {
			if ref := user.PasswordSecretRef; ref != nil {
				r.useMachineSecret(vm.Namespace, ref, usedBy)
			}
		}
		if init := vm.Spec.CloudInit; init != nil && init.UserDataSecretRef != nil {
			r.useMachineSecret(vm.Namespace, init.UserDataSecretRef, usedBy)
		}
	}
}

func (r *reader) useMachineSecret(namespace string, ref *v1alpha1.SecretKey, usedBy string) {
	r.useSecret(doctor.SecretUse{Namespace: namespace, Name: ref.Name, UsedBy: usedBy, Keys: []string{ref.Key}})
}

// readSecrets keeps which keys are lacking, and no value.
func (r *reader) readSecrets(ctx context.Context) {
	for i := range r.snapshot.Secrets {
		use := &r.snapshot.Secrets[i]
		secret := &corev1.Secret{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: use.Namespace, Name: use.Name}, secret)
		switch {
		case apierrors.IsNotFound(err):
			use.Missing = true
		case err != nil:
			use.Unread = describe(string(doctor.SourceSecrets)+" in namespace "+use.Namespace, err)
		case len(use.Keys) == 0:
			use.Problem = image.DescribeHeaderProblem(secret)
		default:
			for _, key := range use.Keys {
				if len(secret.Data[key]) == 0 {
					use.Lacking = append(use.Lacking, key)
				}
			}
		}
	}
}
