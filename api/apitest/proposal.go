package apitest

// ProposedImage and ProposedMachine are the examples that the API was proposed
// with; they must stay valid as they are.
const (
	ProposedImage = `
apiVersion: "pelotech.ot/v1alpha1"
kind: "VMDiskImage"
metadata: {name: "sync-workspace-123"}
spec: {storageClass: "gp3", snapshotClass: "ebs-snapshot", secretRef: "foo-bar", name: "harrison-vm", url: "https://s3.us-gov-west-1.amazonaws.com/uki-lrn-vm-images/images/lab-151/1.0.0/attacker.qcow2", sourceType: "s3", diskSize: "24Gi"}
`

	ProposedMachine = `
apiVersion: "pelotech.ot/v1alpha1"
kind: "VirtualMachine"
metadata: {name: "demo-workspace-1"}
spec:
  baseVm: ubuntu_2004_lts_en-us_x64
  baseVmVersion: 2.1.2
  ignoreOnDeploy: true
  name: demo-vm
  version: 2.1.0
  users: [{name: demo user, plain_text_passwd: demo-pwd, lock_passwd: false, sudo: "ALL=(ALL) NOPASSWD:ALL", groups: sudo}]
  resources: {cpu: '2', memory: 2Gi, diskSize: 18Gi}
  interfaces: [{network: control-net, ipAddress: 10.10.0.161/24}, {network: bridge-inet, ipAddress: 4.29.163.6/28}, {network: bridge-edge, ipAddress: 172.27.11.11/28}]
  vmDiskImageRef: {name: demo-vmdi, namespace: vmdi-farm}
  vmDiskImageTemplate: {storageClass: gp3, snapshotClass: ebs-snapshot, secretRef: foo-bar, name: harrison-vm, url: "https://s3.us-gov-west-1.amazonaws.com/vm-images/images/harrison-vm/1.0.0/vm.qcow2", sourceType: s3, diskSize: 24Gi}
`
)
