//go:build tools

// Package suites imports the dependencies of controller-runtime's test suites, so that this module can compile the
// unmodified suites.
package suites

import (
	_ "github.com/google/gofuzz"
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"
	_ "github.com/onsi/gomega/gcustom"
	_ "github.com/onsi/gomega/gstruct"
	_ "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	_ "sigs.k8s.io/controller-runtime/examples/crd/pkg"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "sigs.k8s.io/controller-runtime/pkg/log/zap"
	_ "sigs.k8s.io/controller-runtime/pkg/metrics/filters"
)
