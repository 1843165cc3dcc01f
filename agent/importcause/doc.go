// Package importcause says what holds an image up, in the words of whoever knows it:
// the kubelet, the scheduler, CDI, a storage driver or the API server.
//
// It is pure, and the only place that reads conditions of the layers below an image.
// Rows has what is known of them; a condition that no row names is passed on as it is.
package importcause
