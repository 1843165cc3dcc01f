// Package v1alpha1 defines the kinds of group pelotech.ot, for members and the hub.
//
// +kubebuilder:object:generate=true
// +groupName=pelotech.ot
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "pelotech.ot", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VMDiskImage{}, &VMDiskImageList{},
		&VirtualMachine{}, &VirtualMachineList{},
		&SyncLedger{}, &SyncLedgerList{},
		&ClusterPlan{}, &ClusterPlanList{},
		&TransferGrant{}, &TransferGrantList{},
		&MemberLink{}, &MemberLinkList{},
		&ClusterJoin{}, &ClusterJoinList{},
		&ClusterReport{}, &ClusterReportList{},
		&MemberCluster{}, &MemberClusterList{},
		&FleetDiskImage{}, &FleetDiskImageList{},
		&PruneReport{}, &PruneReportList{},
		&PruneReportPage{}, &PruneReportPageList{},
		&ImagePrune{}, &ImagePruneList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
