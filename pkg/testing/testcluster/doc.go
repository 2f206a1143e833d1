// Package testcluster gives each test its own Kubernetes cluster: an API server with its store in the test's
// process, ready in well under 100 ms, optionally with reconcilers, scheduler and fake nodes; or a complete cluster
// with real pods, which needs root.
//
//	func TestController(t *testing.T) {
//		cluster := testcluster.New(t, testcluster.Config{})
//		api := kubernetes.NewForConfigOrDie(cluster.REST())
//		...
//	}
//
// Clusters share nothing, so parallel tests can have one each. They listen on free ports of the loopback interface
// and keep their data in a temporary directory without syncing it.
//
// Its invariant: after Stop no goroutine and no file of a cluster is left.
package testcluster
