package ctl

import (
	"context"
	"fmt"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// Approve approves what waits for approval: the content of a Bundle as it is now. One that changes meanwhile is not approved.
func (c *Cluster) Approve(ctx context.Context, name string, dryRun bool, t Terminal) error {
	bundle, ok := strings.CutPrefix(name, bundlePrefix)
	if !ok {
		return fmt.Errorf("%q is no bundle/NAME", name)
	}
	b, err := c.getBundle(ctx, bundle)
	if err != nil {
		return err
	}
	s := &b.Status
	switch {
	case b.Spec.Rollout.Approval != kontrol.ApprovalManual:
		return fmt.Errorf("bundle %s needs no approval: spec.rollout.approval is %s", b.Name, b.Spec.Rollout.Approval)
	case s.ObservedGeneration != b.Generation || s.Content == "":
		return fmt.Errorf("the content of bundle %s was not read yet: look at it, and try again", b.Name)
	case s.Approved == s.Content:
		_, err := fmt.Fprintf(t.Out, "bundle %s: content %s is approved already\n", b.Name, s.Content)
		return err
	}
	var options []ctrl.SubResourceUpdateOption
	text := ""
	if dryRun {
		options, text = append(options, ctrl.DryRunAll), " (dry run)"
	}
	s.Approved = s.Content
	if err := c.Client.Status().Update(ctx, b, options...); err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.Out, "bundle %s: content %s approved%s\n", b.Name, s.Content, text)
	return err
}
