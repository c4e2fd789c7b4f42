"""The network. The name of an array ends in its axes; a letter means one thing everywhere.

    B  batch               H  query heads            L  layers
    T  query positions     G  key/value heads        C  classes
    S  key positions       K  head size              M  features of a feature map
    D  width               V  vocabulary             N  beams or outputs of a prompt
    F  feed-forward size                             P  values of an image patch

`x_btd` is (batch, length, width); `scores_bhts` has a score for each head, query and key. A 1 is an
axis of size 1. Files that use other letters declare them at the top.
"""
