// Package upstream runs Kubernetes' own kube-apiserver, kube-scheduler and kube-controller-manager with etcd, for tests
// that compare Coracle with them or run its parts against them. `make upstream` compiles them into dist/upstream, for
// minutes, so tests that need them run only with CORACLE_TEST_UPSTREAM=1.
//
// TestUpstreamAnswersAlike sends the same requests to both API servers and compares what they answer;
// alike_deliberate_test.go has the differences that are on purpose.
//
// Its invariant: what Start started has ended when Stop returns.
package upstream
