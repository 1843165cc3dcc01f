package tree

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/why"
)

// MachineSnapshot is what a member says of a machine. What could not be read is nil.
type MachineSnapshot struct {
	Now         time.Time
	Machine     *v1alpha1.VirtualMachine
	Image       *v1alpha1.VMDiskImage
	DataVolumes []cdiv1.DataVolume
	Claims      []corev1.PersistentVolumeClaim
	KubeVirt    *kubevirtv1.VirtualMachine
	Instance    *kubevirtv1.VirtualMachineInstance
	Pods        []corev1.Pod
}

// NewMachine returns a machine with its image, its disks, and what KubeVirt made of it.
func NewMachine(s MachineSnapshot) *Node {
	m := s.Machine
	var image *why.ImageSnapshot
	if s.Image != nil {
		explained := explainedImage(s.Now, s.Image)
		image = &explained
	}
	root := machineSummary(m, image)
	root.Message = m.Status.Message
	root.add(imageOf(s))
	for i := range s.DataVolumes {
		dv := &s.DataVolumes[i]
		n := dataVolumeNode(dv)
		if disk := dv.Labels[v1alpha1.LabelDisk]; disk != "" {
			n.Words += " (disk " + disk + ")"
		} else {
			n.Words += " (root disk)"
		}
		for j := range s.Claims {
			if c := &s.Claims[j]; isOwnedBy(c, dv) || c.Name == dv.Name {
				n.add(claimNode(c))
			}
		}
		root.add(n)
	}
	if kv := s.KubeVirt; kv != nil {
		n := &Node{Kind: "VirtualMachine.kubevirt.io", Name: kv.Name, Words: string(kv.Status.PrintableStatus), State: stateOfPrintable(kv.Status.PrintableStatus)}
		if i := s.Instance; i != nil {
			instance := &Node{Kind: "VirtualMachineInstance", Name: i.Name, Words: string(i.Status.Phase), State: stateOfInstance(i.Status.Phase)}
			if i.Status.NodeName != "" {
				instance.Words += " on " + i.Status.NodeName
			}
			for j := range s.Pods {
				instance.add(podNode(&s.Pods[j]))
			}
			n.add(instance)
		}
		root.add(n)
	}
	return root
}

func imageOf(s MachineSnapshot) *Node {
	if s.Image != nil {
		return imageSummary(s.Image)
	}
	ref := s.Machine.ImageNamespacedName()
	return &Node{Kind: "VMDiskImage", Namespace: ref.Namespace, Name: ref.Name, State: Unknown, Words: "could not be read"}
}

// machineSummary is a machine, with its image where that was read.
func machineSummary(m *v1alpha1.VirtualMachine, image *why.ImageSnapshot) *Node {
	n := &Node{Kind: "VirtualMachine", Namespace: m.Namespace, Name: m.Name, Words: joinWords(m.Status.Phase, m.Status.Reason), State: Waiting}
	switch verdict := why.NewMachine(why.MachineSnapshot{Machine: m, Image: image}).Verdict; {
	case m.Status.Phase == v1alpha1.MachineReady:
		n.State = Done
	case verdict == why.Failed:
		n.State = Failed
	case verdict == why.Held:
		n.State = Attention
	}
	if m.Status.PrintableStatus != "" && m.Status.PrintableStatus != string(m.Status.Reason) {
		n.Words += " " + m.Status.PrintableStatus
	}
	return n
}

func stateOfPrintable(status kubevirtv1.VirtualMachinePrintableStatus) State {
	switch status {
	case kubevirtv1.VirtualMachineStatusRunning, kubevirtv1.VirtualMachineStatusStopped:
		return Done
	case kubevirtv1.VirtualMachineStatusCrashLoopBackOff, kubevirtv1.VirtualMachineStatusUnschedulable, kubevirtv1.VirtualMachineStatusDataVolumeError,
		kubevirtv1.VirtualMachineStatusPvcNotFound, kubevirtv1.VirtualMachineStatusErrImagePull, kubevirtv1.VirtualMachineStatusImagePullBackOff:
		return Failed
	default:
		return Waiting
	}
}

func stateOfInstance(phase kubevirtv1.VirtualMachineInstancePhase) State {
	switch phase {
	case kubevirtv1.Running, kubevirtv1.Succeeded:
		return Done
	case kubevirtv1.Failed:
		return Failed
	default:
		return Waiting
	}
}
