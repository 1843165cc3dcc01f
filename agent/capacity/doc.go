// Package capacity decides whether a cluster has storage for an image.
//
// Reader reads CSIStorageCapacities, ResourceQuotas, LimitRanges, StorageClasses, CSIDrivers,
// StorageProfiles and the CDIConfig, once for all images. FindBlocker is pure: it decides by what
// was read. What is unknown blocks nothing, as most clusters publish only some of these.
package capacity
