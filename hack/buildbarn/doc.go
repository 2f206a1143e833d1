// Package buildbarn pins the versions of Buildbarn whose images hack/images/buildbarn builds, and checks configurations
// against them. It is a module of its own, because Coracle links nothing of Buildbarn.
package buildbarn
