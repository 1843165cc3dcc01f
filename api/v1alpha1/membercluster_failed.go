package v1alpha1

// CountFailedImages returns how many images of the member have failed. The counts are of its report's
// root, the list is of its pages: either may be newer.
func (s *MemberClusterStatus) CountFailedImages() int32 {
	failed := int32(len(s.Failing))
	if s.Images != nil {
		failed = max(failed, s.Images.Failed)
	}
	return failed
}
