package rollout

// Decide returns what is to be done about a FleetDiskImage, and its status.
func Decide(v View) Decision {
	return Decision{Status: *v.Image.Status.DeepCopy(), Hold: true}
}
