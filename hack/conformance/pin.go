//go:build tools

// The suite's images are built from this package, which nothing imports.
package conformance

import _ "k8s.io/kubernetes/test/images/agnhost"
