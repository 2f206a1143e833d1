package server

import (
	"crypto/x509"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/pki"
)

// A node's name belongs to one machine. Each machine has a key that never leaves it, and registers its Node with the key's
// hash as an annotation, in the same write that takes the name. From then on the name is that machine's: another key gets no
// certificate for it (admit), and one that it has already got opens nothing (refuseOther). There is no other state: deleting
// the Node frees the name, and a machine that runs takes it up again by registering anew, unless another one was faster.
//
// The server's own node uses no certificate. Its machine's identity is the client authority's, of which nobody else can
// have the key.
const machineAnnotation = "coracle.dev/machine"

// ownedByOther explains that a node's name belongs to another machine.
func ownedByOther(name string) error {
	return fmt.Errorf("the node name %s belongs to another machine: if that one is gone for good, free the name with `coracle ctl delete node %s`; else choose another with --node-name", name, name)
}

// mine says why a Node cannot be the machine's; nil if it is, or nobody's.
func mine(node *corev1.Node, machine string) error {
	if owner := node.Annotations[machineAnnotation]; owner != "" && owner != machine {
		return ownedByOther(node.Name)
	}
	return nil
}

// refuseOther is apiserver.Config.CheckNode.
func refuseOther(node *corev1.Node, certificate *x509.Certificate) error {
	machine, err := pki.Identity(certificate.PublicKey)
	if err != nil {
		return err
	}
	return mine(node, machine)
}
