package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// The test fails when the versions in go.mod have changed and the embedded file has not.
func TestEmbeddedSchemaIsThatOfThePinnedModules(t *testing.T) {
	packed, err := os.ReadFile("../../../pkg/systems/buildbarn/schema/buildbarn.binpb.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var have descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &have); err != nil {
		t.Fatal(err)
	}
	want, err := Set()
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&have, want) {
		t.Error("the embedded schema has other versions than go.mod: in hack/buildbarn, go run ./schema " +
			"../../pkg/systems/buildbarn/schema/buildbarn.binpb.gz")
	}
}
