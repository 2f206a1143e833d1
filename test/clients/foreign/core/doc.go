// Package core is where the client of api/v1 goes, which the test generates.
package core

import (
	_ "github.com/oapi-codegen/runtime" // what is generated uses it
	_ "go.yaml.in/yaml/v3"
)
