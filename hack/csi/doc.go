// Package csi pins the versions of the CSI sidecars whose images hack/images/csi builds. It is a separate module,
// because Coracle links none of their packages.
package csi
