// Package buildbarn pins the versions of Buildbarn whose images hack/images/buildbarn builds, and checks
// configurations against them. It is a separate module, because Coracle links no Buildbarn package.
package buildbarn
